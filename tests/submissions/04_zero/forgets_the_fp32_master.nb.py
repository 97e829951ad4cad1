# /// shardlab-submission
# lab = "04_zero"
# loses = {zero_bytes = 3.0}
# says = {zero_bytes = "forgets the fp32 master"}
# ///

# %% nbgrader={"grade_id": "zero_bytes", "solution": true}
def zero_bytes(parameters, world_size, stage, offload=False):
    """(8, 4, 0)  ->  {"parameters": 16, "gradients": 16, "optimizer": 96, "host": 0}"""
    share = parameters / world_size
    sizes = {
        "parameters": 2 * (share if stage >= 3 else parameters),
        "gradients": 2 * (share if stage >= 2 else parameters),
        "optimizer": 8 * (share if stage >= 1 else parameters),
        "host": 0,
    }
    if offload:
        sizes["host"] = sizes["gradients"] + sizes["optimizer"]
        sizes["gradients"] = sizes["optimizer"] = 0
    return sizes
