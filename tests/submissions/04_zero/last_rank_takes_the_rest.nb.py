# /// shardlab-submission
# lab = "04_zero"
# loses = {shard_bounds = 2.0}
# says = {shard_bounds = "makes unequal slices"}
# ///

# %% nbgrader={"grade_id": "shard_bounds", "solution": true}
def shard_bounds(sizes, world_size):
    length = sum(sizes) // world_size
    bounds = [(rank * length, (rank + 1) * length) for rank in range(world_size)]
    return [*bounds[:-1], (bounds[-1][0], sum(sizes))]
