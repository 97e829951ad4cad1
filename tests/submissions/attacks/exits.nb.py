# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "destruction"
# tries = "os._exit in a cell: stock nbgrader leaves the submission ungraded"
# seen_by = "points"
# state = "student error"
# ///
# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
import os
os._exit(0)

def chunk_bounds(length, world_size):
    return [(0, length)] * world_size
