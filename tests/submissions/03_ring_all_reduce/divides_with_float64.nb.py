# /// shardlab-submission
# lab = "03_ring_all_reduce"
# loses = {chunk_bounds = 0.333}
# says = {chunk_bounds = "should satisfy 0 ≤ start ≤ stop ≤ length"}
# ///

# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
def chunk_bounds(length, world_size):
    small = int(length / world_size)
    extra = length - small * world_size
    starts = [r * small + min(r, extra) for r in range(world_size + 1)]
    return list(zip(starts, starts[1:]))
