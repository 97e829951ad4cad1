"""Lab 01: the bytes of a step, accumulation, loss scaling and master weights."""

EXERCISES = ("step_bytes", "accumulate", "dynamic_loss_scaler", "sgd_with_master_weights")
CLOSED = ("shardlab.estimate", "shardlab.models.paper_layer", "shardlab.models.bigram")
