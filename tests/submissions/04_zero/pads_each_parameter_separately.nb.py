# /// shardlab-submission
# lab = "04_zero"
# loses = {shard_bounds = 1.5}
# says = {shard_bounds = "pads each parameter by itself"}
# ///

# %% nbgrader={"grade_id": "shard_bounds", "solution": true}
def shard_bounds(sizes, world_size):
    """([3, 4, 3], 4)  ->  [(0, 3), (3, 6), (6, 9), (9, 12)]"""
    length = sum(-(-size // world_size) for size in sizes)
    return [(rank * length, (rank + 1) * length) for rank in range(world_size)]
