# /// shardlab-submission
# lab = "03_ring_all_reduce"
# loses = {reduce_scatter = 5.0, all_gather = 4.0}
# says = {reduce_scatter = "returns a copy of the sum", all_gather = "leaves tensor as it was"}
# ///

# %% nbgrader={"grade_id": "reduce_scatter", "solution": true}
def reduce_scatter(tensor, bounds):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    tensor.data = tensor.clone()
    chunks = [tensor[start:stop] for start, stop in bounds]
    for step in range(world_size - 1):
        outgoing = chunks[(rank - step - 1) % world_size]
        incoming = chunks[(rank - step - 2) % world_size]
        received = torch.empty_like(incoming)
        sending = dist.isend(outgoing, right)
        dist.recv(received, left)
        sending.wait()
        incoming += received
    return chunks[rank]

# %% nbgrader={"grade_id": "all_gather", "solution": true}
def all_gather(tensor, bounds):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    chunks = [tensor[start:stop].clone() for start, stop in bounds]
    for step in range(world_size - 1):
        sending = dist.isend(chunks[(rank - step) % world_size], right)
        dist.recv(chunks[(rank - step - 1) % world_size], left)
        sending.wait()
    tensor.data = torch.cat(chunks)
