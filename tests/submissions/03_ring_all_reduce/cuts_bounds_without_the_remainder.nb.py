# /// shardlab-submission
# lab = "03_ring_all_reduce"
# loses = {ring_all_reduce = 3.0}
# says = {ring_all_reduce = "ValueError"}
# ///

# %% nbgrader={"grade_id": "ring_all_reduce", "solution": true}
def ring_all_reduce(tensor, op="sum"):
    world_size = dist.get_world_size()
    size = len(tensor) // world_size
    bounds = [(r * size, (r + 1) * size) for r in range(world_size)]
    chunk = reduce_scatter(tensor, bounds)
    if op == "mean":
        chunk /= world_size
    all_gather(tensor, bounds)
