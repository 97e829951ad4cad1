# /// shardlab-submission
# lab = "02_dp_vs_ddp"
# loses = {hub_bytes = 2.0}
# says = {hub_bytes = "gives the wrong number"}
# ///
# "Gradients go to the hub": the parameter server as it is often drawn.

# %% nbgrader={"grade_id": "hub_bytes", "solution": true}
def hub_bytes(parameter_bytes, world_size):
    return [(0, (world_size - 1) * parameter_bytes)] + [(parameter_bytes, 0)] * (world_size - 1)
