# /// shardlab-submission
# lab = "04_zero"
# loses = {shard_bounds = 2.0}
# says = {shard_bounds = "should give a list"}
# ///

# %% nbgrader={"grade_id": "shard_bounds", "solution": true}
def shard_bounds(sizes, world_size):
    length = -(-sum(sizes) // world_size)
    return {r: (r * length, (r + 1) * length) for r in range(world_size)}
