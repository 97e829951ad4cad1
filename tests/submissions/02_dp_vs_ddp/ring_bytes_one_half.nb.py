# /// shardlab-submission
# lab = "02_dp_vs_ddp"
# loses = {ring_bytes = 2.0}
# says = {ring_bytes = "counts one half of the ring"}
# ///

# %% nbgrader={"grade_id": "ring_bytes", "solution": true}
def ring_bytes(parameter_bytes, world_size):
    each = (world_size - 1) * parameter_bytes / world_size
    return [(each, each)] * world_size
