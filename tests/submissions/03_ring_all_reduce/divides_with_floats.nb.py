# /// shardlab-submission
# lab = "03_ring_all_reduce"
# loses = {chunk_bounds = 0.333}
# says = {chunk_bounds = "some elements are in no chunk"}
# ///

# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
import math


def chunk_bounds(length, world_size):
    bounds, start = [], 0
    for r in range(world_size):
        stop = start + math.ceil((length - start) / (world_size - r))
        bounds.append((start, stop))
        start = stop
    return bounds
