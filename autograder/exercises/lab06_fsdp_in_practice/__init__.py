"""Lab 06: what a mesh sends, fp32 masters, gradient accumulation, and methods by their calls."""

EXERCISES = (
    "hsdp_bytes",
    "stalled",
    "accumulate",
    "which_is_it",
)
CLOSED = (
    "shardlab.estimate",
    "shardlab.shards",
    "shardlab.widgets",
    "shardlab.recorded_runs.step_traces",
)
