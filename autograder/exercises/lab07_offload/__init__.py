"""Lab 07: what offload moves, an optimizer on the host, and configurations for offload."""

EXERCISES = ("offload_bytes_per_step", "offloaded_adam", "write_config", "fix_config")
# Not all of shardlab.estimate: write_config's table is given, and `memory` may compute it.
CLOSED = ("shardlab.estimate.offload",)
# DeepSpeed's ranks take several hundred MB each, and the first one compiles.
LIMITS = {"memory_bytes": 8_000_000_000, "cell_s": 60.0}
