# /// shardlab-submission
# lab = "04_zero"
# loses = {zero_bytes = 3.0}
# says = {zero_bytes = "counts GB as GiB"}
# ///

# %% nbgrader={"grade_id": "zero_bytes", "solution": true}
def zero_bytes(parameters, world_size, stage, offload=False):
    billions = parameters / 1e9
    share = billions / world_size
    sizes = {
        "parameters": 2 * (share if stage >= 3 else billions),
        "gradients": 2 * (share if stage >= 2 else billions),
        "optimizer": 12 * (share if stage >= 1 else billions),
        "host": 0,
    }
    if offload:
        sizes["host"] = sizes["gradients"] + sizes["optimizer"]
        sizes["gradients"] = sizes["optimizer"] = 0
    return {name: gigabytes * 2**30 for name, gigabytes in sizes.items()}
