# /// shardlab-submission
# lab = "03_ring_all_reduce"
# loses = {all_gather = 4.0}
# says = {all_gather = "sends the wrong chunk: it should send first its own"}
# ///
# %% nbgrader={"grade_id": "all_gather", "solution": true}
def all_gather(tensor, bounds):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    chunks = [tensor[start:stop] for start, stop in bounds]
    for step in range(world_size - 1):
        sending = dist.isend(chunks[(rank - step - 1) % world_size], right)
        dist.recv(chunks[(rank - step - 2) % world_size], left)
        sending.wait()
