# /// shardlab-submission
# lab = "06_offload"
# loses = {offload_bytes_per_step = 2.0}
# says = {offload_bytes_per_step = "a backward pass for each micro-batch"}
# ///

# %% nbgrader={"grade_id": "offload_bytes_per_step", "solution": true}
def offload_bytes_per_step(method, parameters, world_size, precision="bf16", micro_batches=1):
    own = parameters / world_size
    gradients = (4 if precision == "fp32" else 2) * own
    if method == "swap":
        states = (8 if precision == "fp32" else 12) * own
        return states, states
    if method == "zero-offload":
        return gradients, gradients
    return gradients, 2 * gradients
