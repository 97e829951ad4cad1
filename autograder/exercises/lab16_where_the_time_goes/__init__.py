"""Lab 16: utilization from a log line, rooflines of products and links, and when traffic hides;
where a step of all ranks loses its time."""

EXERCISES = (
    "mfu",
    "roofline_time",
    "threshold",
    "exposed_communication",
    "find_the_bottleneck",
    "repaired_step",
)
CLOSED = (
    "shardlab.estimate",
    "shardlab.widgets",
    "shardlab.recorded_runs.bottlenecks",
    "shardlab.run.step_time",
    "shardlab.run.states",
    "shardlab.run.critical_path",
)
