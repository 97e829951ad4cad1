# /// shardlab-submission
# lab = "03_ring_all_reduce"
# loses = {ring_all_reduce = 5.0}
# says = {ring_all_reduce = "modifies a copy"}
# ///

# %% nbgrader={"grade_id": "ring_all_reduce", "solution": true}
def ring_all_reduce(tensor, op="sum"):
    tensor = tensor.clone()
    bounds = chunk_bounds(len(tensor), dist.get_world_size())
    reduce_scatter(tensor, bounds)
    all_gather(tensor, bounds)
    if op == "mean":
        tensor = tensor / dist.get_world_size()
    return tensor
