# /// shardlab-submission
# lab = "02_dp_vs_ddp"
# loses = {ring_bytes = 1.0}
# says = {ring_bytes = "counts bytes for a single rank"}
# ///
# %% nbgrader={"grade_id": "ring_bytes", "solution": true}
def ring_bytes(parameter_bytes, world_size):
    each = 2 * max(world_size - 1, 1) * parameter_bytes / world_size
    return [(each, each)] * world_size
