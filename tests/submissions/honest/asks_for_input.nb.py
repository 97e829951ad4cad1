# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "honest"
# tries = "input() in a cell, which nobody can answer"
# seen_by = "points"
# state = "graded"
# earns = {chunk_bounds = 2}
# ///
# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
def chunk_bounds(length, world_size):
    small, extra = divmod(length, world_size)
    starts = [r * small + min(r, extra) for r in range(world_size + 1)]
    return list(zip(starts[:-1], starts[1:]))

name = input('your name? ')
