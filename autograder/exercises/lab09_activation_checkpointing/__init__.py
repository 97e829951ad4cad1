"""Lab 09: keep inputs, compute the rest again; where to cut, what it saves, and over ranks."""

EXERCISES = ("checkpoint", "checkpoint_sequential", "activation_bytes", "partitioned_checkpoint")
CLOSED = ("shardlab.estimate", "shardlab.paper_layer")
