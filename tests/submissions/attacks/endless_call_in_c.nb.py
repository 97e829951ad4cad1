# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "destruction"
# tries = "a C function that holds the GIL and never returns"
# seen_by = "neighbors"
# state = "resource limit"
# ///
# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
import ctypes
ctypes.PyDLL(None).sleep(100_000)

def chunk_bounds(length, world_size):
    return [(0, length)] * world_size
