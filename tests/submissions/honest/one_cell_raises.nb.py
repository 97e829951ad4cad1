# /// shardlab-submission
# lab = "03_ring_all_reduce"
# kind = "honest"
# tries = "an experiment that fails, after a correct answer"
# seen_by = "points"
# state = "graded"
# earns = {bytes_per_rank = 2}
# ///
# %% nbgrader={"grade_id": "bytes_per_rank", "solution": true}
def bytes_per_rank(length, element_bytes, world_size):
    return 2 * (world_size - 1) * length * element_bytes / world_size

bytes_per_rank(1000, 4, 0)
