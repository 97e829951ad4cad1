# /// shardlab-submission
# lab = "06_offload"
# loses = {write_config = 4.0}
# says = {write_config = "micro-batch × accumulation × world size"}
# ///

# %% nbgrader={"grade_id": "write_config", "solution": true}
def write_config(parameters, world_size, device_bytes, micro_batch, global_batch):
    shard = parameters / world_size
    rows = [
        (16 * parameters, 0, False, False),
        (4 * parameters + 12 * shard, 1, False, False),
        (2 * parameters + 14 * shard, 2, False, False),
        (16 * shard, 3, False, False),
        (2 * parameters, 2, True, False),
        (2 * shard, 3, True, False),
        (0, 3, True, True),
    ]
    _, stage, optimizer_off, parameters_off = next(row for row in rows if row[0] <= device_bytes)
    zero = {"stage": stage}
    if optimizer_off:
        zero["offload_optimizer"] = {"device": "cpu"}
    if parameters_off:
        zero["offload_param"] = {"device": "cpu"}
    return {
        "train_batch_size": global_batch,
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": global_batch // micro_batch,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
    }
