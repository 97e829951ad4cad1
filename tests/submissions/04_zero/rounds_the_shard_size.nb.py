# /// shardlab-submission
# lab = "04_zero"
# loses = {zero_bytes = 1.75}
# says = {zero_bytes = "rounds a rank's share"}
# ///

# %% nbgrader={"grade_id": "zero_bytes", "solution": true}
def zero_bytes(parameters, world_size, stage, offload=False):
    share = parameters // world_size
    sizes = {
        "parameters": 2 * (share if stage >= 3 else parameters),
        "gradients": 2 * (share if stage >= 2 else parameters),
        "optimizer": 12 * (share if stage >= 1 else parameters),
        "host": 0,
    }
    if offload:
        sizes["host"] = sizes["gradients"] + sizes["optimizer"]
        sizes["gradients"] = sizes["optimizer"] = 0
    return sizes
