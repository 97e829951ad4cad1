"""Lab 04: what ZeRO shards at each stage, as arithmetic and on real ranks."""

EXERCISES = ("zero_bytes", "shard_bounds", "zero1_adamw", "zero2_backward", "zero3_linear")
CLOSED = ("shardlab.estimate", "shardlab.shards", "shardlab.widgets")
