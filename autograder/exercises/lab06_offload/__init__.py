"""Lab 06: what offload moves, an optimizer on the host, and configurations that ask for it."""

EXERCISES = ("offload_bytes_per_step", "offloaded_adam", "write_config", "fix_config")
# Not all of shardlab.estimate: write_config's table is given, and may be computed by `memory`.
CLOSED = ("shardlab.estimate.offload",)
# DeepSpeed's ranks hold several hundred MB each, and the first one compiles.
LIMITS = {"memory_bytes": 8_000_000_000, "cell_s": 60.0}
