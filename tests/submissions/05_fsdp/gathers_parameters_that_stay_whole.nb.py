# /// shardlab-submission
# lab = "05_fsdp"
# loses = {hsdp_bytes = 1.0}
# says = {hsdp_bytes = "counts two all-gathers where the parameters stay whole"}
# ///

# %% nbgrader={"grade_id": "hsdp_bytes", "solution": true}
def hsdp_bytes(parameters, replicas, shards, element_bytes=2, reshard_after_forward=True):
    model_bytes = parameters * element_bytes
    tensors = 3
    return {
        "within": tensors * (shards - 1) / shards * model_bytes,
        "across": 2 * (replicas - 1) / replicas * model_bytes / shards,
    }
