# /// shardlab-submission
# lab = "06_offload"
# loses = {offload_bytes_per_step = 1.0}
# says = {offload_bytes_per_step = "gives the wrong number"}
# ///
# 16 bytes for each parameter; with 2 ranks that is as much as 8 bytes without the division by N.

# %% nbgrader={"grade_id": "offload_bytes_per_step", "solution": true}
def offload_bytes_per_step(method, parameters, world_size, precision="bf16", micro_batches=1):
    """("zero-offload", 1000, 2)  ->  (1000, 1000)"""
    own = parameters / world_size
    gradients = (4 if precision == "fp32" else 2) * own
    if method == "swap":
        states = (16 if precision == "fp32" else 12) * own
        return states, states
    if method == "zero-offload":
        return micro_batches * gradients, gradients
    return micro_batches * gradients, 2 * micro_batches * gradients
