# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "destruction"
# tries = "pictures and HTML of 50 MB, a thousand updates, deep JSON"
# seen_by = "neighbors"
# state = "resource limit"
# ///
# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
from IPython.display import HTML, display
display(HTML("x" * 50_000_000))
handle = display(HTML("x"), display_id=True)
for _ in range(2000):
    handle.update(HTML("x" * 10_000))
deep = {}
for _ in range(900):
    deep = {"a": deep}
display({"application/json": deep}, raw=True)

def chunk_bounds(length, world_size):
    return [(0, length)] * world_size
