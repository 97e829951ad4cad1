# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "forging"
# tries = "points as nan, -1, True, inf and a tensor, shown by every cell"
# seen_by = "points"
# state = "student error"
# ///
# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
from IPython.display import display
import numpy as np, torch
for points in (float("nan"), float("inf"), -1, True, 1e300, np.float64(2), torch.tensor(2.0), 2.0):
    display(points)
check = lambda *_: 1e9
chunk_bounds = 2.0
chunk_bounds

# %% nbgrader={"grade_id": "bytes_per_rank", "solution": true}
bytes_per_rank = float("inf")
bytes_per_rank
