# /// shardlab-submission
# lab = "03_ring_all_reduce"
# loses = {chunk_bounds = 2.0}
# says = {chunk_bounds = "should satisfy 0 ≤ start ≤ stop ≤ length"}
# ///

# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
def chunk_bounds(length, world_size):
    small, extra = divmod(length, world_size)
    return [(r * small + min(r, extra), small + (r < extra)) for r in range(world_size)]
