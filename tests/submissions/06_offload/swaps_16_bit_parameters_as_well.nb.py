# /// shardlab-submission
# lab = "06_offload"
# loses = {offload_bytes_per_step = 1.0}
# says = {offload_bytes_per_step = "counts gradients or parameters as well"}
# ///
# 2 more bytes for each parameter, which stays on the device.

# %% nbgrader={"grade_id": "offload_bytes_per_step", "solution": true}
def offload_bytes_per_step(method, parameters, world_size, precision="bf16", micro_batches=1):
    """("zero-offload", 1000, 2)  ->  (1000, 1000)"""
    own = parameters / world_size
    gradients = (4 if precision == "fp32" else 2) * own
    if method == "swap":
        states = (8 if precision == "fp32" else 14) * own
        return states, states
    if method == "zero-offload":
        return micro_batches * gradients, gradients
    return micro_batches * gradients, 2 * micro_batches * gradients
