# /// shardlab-submission
# lab = "06_fsdp_in_practice"
# typed = true
# loses = {hsdp_bytes = 1.5}
# says = {hsdp_bytes = "counts the wrong number of exchanges within the group"}
# ///

# %% nbgrader={"grade_id": "hsdp_bytes", "solution": true}
def hsdp_bytes(parameters, replicas, shards, element_bytes=2, reshard_after_forward=True):
    model_bytes = parameters * element_bytes
    tensors = 2
    return {
        "within": tensors * (shards - 1) / shards * model_bytes,
        "across": 2 * (replicas - 1) / replicas * model_bytes / shards,
    }
