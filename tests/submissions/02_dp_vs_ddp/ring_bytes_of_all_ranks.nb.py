# /// shardlab-submission
# lab = "02_dp_vs_ddp"
# loses = {ring_bytes = 2.0}
# says = {ring_bytes = "gives the wrong number"}
# ///

# %% nbgrader={"grade_id": "ring_bytes", "solution": true}
def ring_bytes(parameter_bytes, world_size):
    total = 2 * (world_size - 1) * parameter_bytes
    return [(total, total)] * world_size
