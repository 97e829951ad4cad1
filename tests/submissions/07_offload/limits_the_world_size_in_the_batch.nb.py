# /// shardlab-submission
# lab = "07_offload"
# loses = {write_config = 1.6}
# says = {write_config = "does not start and train with DeepSpeed"}
# ///

# %% nbgrader={"grade_id": "write_config", "solution": true}
def write_config(parameters, world_size, device_bytes, micro_batch, global_batch):
    """Bytes and counts  ->  a configuration for deepspeed.initialize"""
    p, n = parameters, world_size
    rows = [
        (16 * p, 0, False, False),
        (4 * p + 12 * p / n, 1, False, False),
        (2 * p + 14 * p / n, 2, False, False),
        (16 * p / n, 3, False, False),
        (2 * p, 2, True, False),
        (2 * p / n, 3, True, False),
        (0, 3, True, True),
    ]
    _, stage, optimizer, params = next(row for row in rows if row[0] <= device_bytes)
    zero = {"stage": stage}
    if optimizer:
        zero["offload_optimizer"] = {"device": "cpu"}
    if params:
        zero["offload_param"] = {"device": "cpu"}
    return {
        "train_batch_size": global_batch,
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": max(2, global_batch // (micro_batch * 4)) if world_size > 8 else global_batch // (micro_batch * world_size),
        "bf16": {"enabled": True},
        "zero_optimization": zero,
    }
