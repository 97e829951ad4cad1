# /// shardlab-submission
# lab = "03_ring_all_reduce"
# loses = {all_gather = 3.6}
# says = {all_gather = "receives from the wrong neighbor"}
# ///
# Receives from its right neighbor, which with two ranks is also its left one.

# %% nbgrader={"grade_id": "all_gather", "solution": true}
def all_gather(tensor, bounds):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    left, right = (rank + 1) % world_size, (rank + 1) % world_size
    chunks = [tensor[start:stop] for start, stop in bounds]
    for step in range(world_size - 1):
        sending = dist.isend(chunks[(rank - step) % world_size], right)
        dist.recv(chunks[(rank - step - 1) % world_size], left)
        sending.wait()
