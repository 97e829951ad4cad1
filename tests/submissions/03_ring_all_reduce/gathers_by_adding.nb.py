# /// shardlab-submission
# lab = "03_ring_all_reduce"
# loses = {all_gather = 4.0}
# says = {all_gather = "adds a received chunk to the old values"}
# ///

# %% nbgrader={"grade_id": "all_gather", "solution": true}
def all_gather(tensor, bounds):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = [tensor[start:stop] for start, stop in bounds]
    for step in range(world_size - 1):
        incoming = chunks[(rank - step - 1) % world_size]
        received = torch.empty_like(incoming)
        sending = dist.isend(chunks[(rank - step) % world_size], (rank + 1) % world_size)
        dist.recv(received, (rank - 1) % world_size)
        sending.wait()
        incoming += received
