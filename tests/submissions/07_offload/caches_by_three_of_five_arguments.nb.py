# /// shardlab-submission
# lab = "07_offload"
# loses = {offload_bytes_per_step = 1.5}
# says = {offload_bytes_per_step = "gives the wrong number"}
# ///

# %% nbgrader={"grade_id": "offload_bytes_per_step", "solution": true}
seen = {}

def offload_bytes_per_step(method, parameters, world_size, precision="bf16", micro_batches=1):
    key = method, parameters, world_size
    if key in seen:
        return seen[key]
    own = parameters / world_size
    gradients = (4 if precision == "fp32" else 2) * own
    if method == "swap":
        states = (8 if precision == "fp32" else 12) * own
        answer = states, states
    elif method == "zero-offload":
        answer = micro_batches * gradients, gradients
    else:
        answer = micro_batches * gradients, 2 * micro_batches * gradients
    seen[key] = answer
    return answer
