"""Lab 05: FSDP's units, their traffic, and what goes wrong."""

EXERCISES = ("which_is_it", "stalled")
CLOSED = ("shardlab.estimate", "shardlab.shards", "shardlab.widgets", "shardlab.step_traces")
