# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "honest"
# tries = "shell commands, magics and a file in the working folder"
# seen_by = "points"
# state = "graded"
# earns = {chunk_bounds = 2, bytes_per_rank = 2}
# ///
# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
# !ls -l | head -2
# %timeit -n1 -r1 sum(range(10))
open('notes.txt', 'w').write('mine')
print(open('notes.txt').read())

def chunk_bounds(length, world_size):
    small, extra = divmod(length, world_size)
    starts = [r * small + min(r, extra) for r in range(world_size + 1)]
    return list(zip(starts[:-1], starts[1:]))

# %% nbgrader={"grade_id": "bytes_per_rank", "solution": true}
# %%time
def bytes_per_rank(length, element_bytes, world_size):
    return 2 * (world_size - 1) * length * element_bytes / world_size
