# /// shardlab-submission
# lab = "03_ring_all_reduce"
# loses = {ring_all_reduce = 3}
# says = {ring_all_reduce = "returns the sum, not the mean: divide by world_size, in place"}
# ///

# %% nbgrader={"grade_id": "ring_all_reduce", "solution": true}
def ring_all_reduce(tensor, op="sum"):
    bounds = chunk_bounds(len(tensor), dist.get_world_size())
    reduce_scatter(tensor, bounds)
    all_gather(tensor, bounds)
