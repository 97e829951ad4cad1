# /// shardlab-submission
# lab = "03_ring_all_reduce"
# loses = {bytes_per_rank = 2.0}
# says = {bytes_per_rank = "forgets (N - 1) / N"}
# ///

# %% nbgrader={"grade_id": "bytes_per_rank", "solution": true}
def bytes_per_rank(length, element_bytes, world_size):
    return 2 * length * element_bytes
