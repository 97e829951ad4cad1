# /// shardlab-submission
# lab = "04_zero"
# loses = {shard_bounds = 2.0}
# says = {shard_bounds = "splits by layer"}
# ///

# %% nbgrader={"grade_id": "shard_bounds", "solution": true}
def shard_bounds(sizes, world_size):
    edges = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    per_rank = -(-len(sizes) // world_size)
    firsts = [min(rank * per_rank, len(sizes)) for rank in range(world_size + 1)]
    return [(edges[firsts[rank]], edges[firsts[rank + 1]]) for rank in range(world_size)]
