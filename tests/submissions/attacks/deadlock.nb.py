# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "distributed"
# tries = "ranks that wait for each other forever, in C++ and in Python"
# seen_by = "neighbors"
# state = "graded"
# ///
# %% nbgrader={"grade_id": "reduce_scatter", "solution": true}
def reduce_scatter(tensor, bounds):
    dist.recv(tensor, (dist.get_rank() + 1) % dist.get_world_size())
    return tensor
