# /// shardlab-submission
# lab = "04_zero"
# loses = {zero_bytes = 2.75}
# says = {zero_bytes = "divides what a stage does not shard"}
# ///

# %% nbgrader={"grade_id": "zero_bytes", "solution": true}
def zero_bytes(parameters, world_size, stage, offload=False):
    """(8, 4, 0)  ->  {"parameters": 16, "gradients": 16, "optimizer": 96, "host": 0}"""
    share = parameters / world_size
    sizes = {
        "parameters": 2 * (share if stage >= 1 else parameters),
        "gradients": 2 * (share if stage >= 1 else parameters),
        "optimizer": 12 * (share if stage >= 1 else parameters),
        "host": 0,
    }
    if offload:
        sizes["host"] = sizes["gradients"] + sizes["optimizer"]
        sizes["gradients"] = sizes["optimizer"] = 0
    return sizes
