# /// shardlab-submission
# lab = "04_zero"
# loses = {shard_bounds = 1.0}
# says = {shard_bounds = "adds an element even where N divides"}
# ///

# %% nbgrader={"grade_id": "shard_bounds", "solution": true}
def shard_bounds(sizes, world_size):
    """([3, 4, 3], 4)  ->  [(0, 3), (3, 6), (6, 9), (9, 12)]"""
    length = sum(sizes) // world_size + 1
    return [(rank * length, (rank + 1) * length) for rank in range(world_size)]
