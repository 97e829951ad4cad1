# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "destruction"
# tries = "an exception with a huge message and a huge name"
# seen_by = "neighbors"
# state = "student error"
# ///
# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
raise type("E" * 100_000, (Exception,), {})("x" * 50_000_000)

# %% nbgrader={"grade_id": "reduce_scatter", "solution": true}
def reduce_scatter(tensor, bounds):
    raise type("E" * 100_000, (Exception,), {})("y" * 50_000_000)
