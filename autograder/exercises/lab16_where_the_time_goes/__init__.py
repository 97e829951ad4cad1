"""Lab 16: utilization from a log line, rooflines of products and links, and when traffic hides."""

EXERCISES = ("mfu", "roofline_time", "threshold")
CLOSED = ("shardlab.estimate", "shardlab.widgets")
