"""Lab 05: FSDP's units: when they are gathered and freed, and which modules should be one."""

EXERCISES = ("gather_and_free", "wrap")
CLOSED = (
    "shardlab.estimate",
    "shardlab.shards",
    "shardlab.widgets",
)
