# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "honest"
# tries = "writes to stderr and warns, in cells and on ranks"
# seen_by = "points"
# state = "graded"
# earns = {chunk_bounds = 2}
# ///
# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
import sys
import warnings

warnings.warn('look out')
print('[W] socket', file=sys.stderr)

def chunk_bounds(length, world_size):
    warnings.warn('here too')
    print('[W]', file=sys.stderr)
    small, extra = divmod(length, world_size)
    starts = [r * small + min(r, extra) for r in range(world_size + 1)]
    return list(zip(starts[:-1], starts[1:]))
