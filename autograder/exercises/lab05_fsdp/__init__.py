"""Lab 05: fully sharded data parallelism, as arithmetic and on real ranks."""

EXERCISES = ("wrap", "accumulate")
CLOSED = ("shardlab.estimate", "shardlab.shards", "shardlab.widgets")
