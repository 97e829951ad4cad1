# /// shardlab-submission
# lab = "03_ring_all_reduce"
# loses = {ring_all_reduce = 0.5}
# says = {ring_all_reduce = "has wrong values in 'tensor'"}
# ///

# %% nbgrader={"grade_id": "ring_all_reduce", "solution": true}
def ring_all_reduce(tensor, op="sum"):
    """tensor [length] on each rank  ->  the sum (or mean) over ranks, in place"""
    world_size = dist.get_world_size()
    bounds = chunk_bounds(len(tensor), world_size)
    chunk = reduce_scatter(tensor, bounds)
    if op == "mean":
        chunk.copy_(chunk.float() / world_size)
    all_gather(tensor, bounds)
