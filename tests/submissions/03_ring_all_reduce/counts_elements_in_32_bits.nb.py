# /// shardlab-submission
# lab = "03_ring_all_reduce"
# loses = {chunk_bounds = 0.333}
# says = {chunk_bounds = "should satisfy 0 ≤ start ≤ stop ≤ length"}
# ///

# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
def chunk_bounds(length, world_size):
    """(10, 4)  ->  [(0, 3), (3, 6), (6, 8), (8, 10)]"""
    lengths = torch.full((world_size,), length // world_size).int()
    lengths[: length % world_size] += 1
    stops = lengths.cumsum(0, dtype=torch.int32)
    return list(zip((stops - lengths).tolist(), stops.tolist()))
