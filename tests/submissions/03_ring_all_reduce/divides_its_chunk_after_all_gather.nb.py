# /// shardlab-submission
# lab = "03_ring_all_reduce"
# loses = {ring_all_reduce = 3}
# says = {ring_all_reduce = "divides its own chunk after all_gather"}
# ///

# %% nbgrader={"grade_id": "ring_all_reduce", "solution": true}
def ring_all_reduce(tensor, op="sum"):
    """tensor [length] on each rank  ->  the sum (or mean) over ranks, in place"""
    world_size = dist.get_world_size()
    bounds = chunk_bounds(len(tensor), world_size)
    chunk = reduce_scatter(tensor, bounds)
    all_gather(tensor, bounds)
    if op == "mean":
        chunk /= world_size
