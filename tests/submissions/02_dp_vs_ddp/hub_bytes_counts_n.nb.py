# /// shardlab-submission
# lab = "02_dp_vs_ddp"
# loses = {hub_bytes = 2.0}
# says = {hub_bytes = "counts N for the hub"}
# ///

# %% nbgrader={"grade_id": "hub_bytes", "solution": true}
def hub_bytes(parameter_bytes, world_size):
    hub = world_size * parameter_bytes
    return [(hub, hub)] + [(parameter_bytes, parameter_bytes)] * (world_size - 1)
