# /// shardlab-submission
# lab = "04_zero"
# typed = true
# loses = {shard_bounds = 2.0}
# says = {shard_bounds = "makes unequal slices"}
# ///

# %% nbgrader={"grade_id": "shard_bounds", "solution": true}
def shard_bounds(sizes, world_size):
    small, extra = divmod(sum(sizes), world_size)
    starts = [rank * small + min(rank, extra) for rank in range(world_size + 1)]
    return [(starts[rank], starts[rank + 1]) for rank in range(world_size)]
