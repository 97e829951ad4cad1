# /// shardlab-submission
# lab = "02_dp_vs_ddp"
# loses = {ring_bytes = 2.0}
# says = {ring_bytes = "forgets (N - 1) / N"}
# ///

# %% nbgrader={"grade_id": "ring_bytes", "solution": true}
def ring_bytes(parameter_bytes, world_size):
    return [(2 * parameter_bytes, 2 * parameter_bytes)] * world_size
