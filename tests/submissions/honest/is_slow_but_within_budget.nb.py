# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "honest"
# tries = "sleeps a second in a cell, and briefly in the answer"
# seen_by = "points"
# state = "graded"
# earns = {chunk_bounds = 2}
# ///
# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
import time

time.sleep(1)

def chunk_bounds(length, world_size):
    time.sleep(0.01)
    small, extra = divmod(length, world_size)
    starts = [r * small + min(r, extra) for r in range(world_size + 1)]
    return list(zip(starts[:-1], starts[1:]))
