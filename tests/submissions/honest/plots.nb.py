# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "honest"
# tries = "a figure and HTML output"
# seen_by = "points"
# state = "graded"
# earns = {chunk_bounds = 2}
# ///
# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
import matplotlib.pyplot as plt
from IPython.display import HTML, display

plt.plot([1, 2, 3])
plt.show()
display(HTML('<b>mine</b>'))

def chunk_bounds(length, world_size):
    small, extra = divmod(length, world_size)
    starts = [r * small + min(r, extra) for r in range(world_size + 1)]
    return list(zip(starts[:-1], starts[1:]))
