# /// shardlab-submission
# lab = "02_dp_vs_ddp"
# loses = {hub_bytes = 2.0}
# says = {hub_bytes = "gives the wrong number"}
# ///

# %% nbgrader={"grade_id": "hub_bytes", "solution": true}
def hub_bytes(parameter_bytes, world_size):
    return [((world_size - 1) * parameter_bytes, 0)] + [(0, parameter_bytes)] * (world_size - 1)
