# /// shardlab-submission
# lab = "07_offload"
# loses = {write_config = 1.6}
# says = {write_config = "do not fit on the device"}
# ///
# Ψ/N in whole bytes; the task compares with the fraction.

# %% nbgrader={"grade_id": "write_config", "solution": true}
def write_config(parameters, world_size, device_bytes, micro_batch, global_batch):
    """Bytes and counts  ->  a configuration for deepspeed.initialize"""
    n, psi = world_size, parameters
    rows = [  # bytes, stage, optimizer on host, parameters on host
        (16 * psi, 0, False, False),
        (4 * psi + 12 * psi // n, 1, False, False),
        (2 * psi + 14 * psi // n, 2, False, False),
        (16 * psi // n, 3, False, False),
        (2 * psi, 2, True, False),
        (2 * psi // n, 3, True, False),
        (0, 3, True, True),
    ]
    stage, optimizer, params = next(row[1:] for row in rows if row[0] <= device_bytes)
    zero = {"stage": stage}
    if optimizer:
        zero["offload_optimizer"] = {"device": "cpu"}
    if params:
        zero["offload_param"] = {"device": "cpu"}
    return {
        "train_batch_size": global_batch,
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": global_batch // (micro_batch * n),
        "bf16": {"enabled": True},
        "zero_optimization": zero,
    }
