# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "honest"
# tries = "numbers and pairs as NumPy and torch types"
# seen_by = "points"
# state = "graded"
# earns = {chunk_bounds = 2, bytes_per_rank = 2}
# ///
# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
import numpy as np

def chunk_bounds(length, world_size):
    small, extra = divmod(length, world_size)
    starts = [r * small + min(r, extra) for r in range(world_size + 1)]
    return [[np.int64(a), torch.tensor(b)] for a, b in zip(starts, starts[1:])]

# %% nbgrader={"grade_id": "bytes_per_rank", "solution": true}
def bytes_per_rank(length, element_bytes, world_size):
    return torch.tensor(1.0, dtype=torch.float64) * 2 * (world_size - 1) * length * element_bytes / world_size
