# /// shardlab-submission
# lab = "05_fsdp"
# loses = {hsdp_bytes = 2.0}
# says = {hsdp_bytes = "gathers over all R·S ranks"}
# ///

# %% nbgrader={"grade_id": "hsdp_bytes", "solution": true}
def hsdp_bytes(parameters, replicas, shards, element_bytes=2, reshard_after_forward=True):
    """(8, 2, 2)  ->  {"within": 24, "across": 8}"""
    model_bytes = parameters * element_bytes
    tensors = 3 if reshard_after_forward else 2
    return {
        "within": tensors * (replicas * shards - 1) / (replicas * shards) * model_bytes,
        "across": 2 * (replicas - 1) / replicas * model_bytes / shards,
    }
