"""Lab 10: activation checkpointing, where to cut, what it saves, and partitioned over ranks."""

EXERCISES = ("checkpoint", "checkpoint_sequential", "activation_bytes", "partitioned_checkpoint")
CLOSED = ("shardlab.estimate", "shardlab.models.paper_layer")
