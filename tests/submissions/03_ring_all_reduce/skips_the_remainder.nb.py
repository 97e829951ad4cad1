# /// shardlab-submission
# lab = "03_ring_all_reduce"
# loses = {chunk_bounds = 1.667}
# says = {chunk_bounds = "skips the remainder"}
# ///

# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
def chunk_bounds(length, world_size):
    size = length // world_size
    return [(rank * size, (rank + 1) * size) for rank in range(world_size)]
