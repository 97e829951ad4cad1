"""Lab 05: FSDP's units: what they send, when they are whole, and what goes wrong."""

EXERCISES = (
    "hsdp_bytes",
    "gather_and_free",
    "wrap",
    "accumulate",
    "which_is_it",
    "stalled",
)
CLOSED = (
    "shardlab.estimate",
    "shardlab.shards",
    "shardlab.widgets",
    "shardlab.recorded_runs.step_traces",
)
