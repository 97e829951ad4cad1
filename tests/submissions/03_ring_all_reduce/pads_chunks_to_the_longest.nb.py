# /// shardlab-submission
# lab = "03_ring_all_reduce"
# loses = {reduce_scatter = 0.5, all_gather = 0.4}
# says = {reduce_scatter = "is over its budget", all_gather = "is over its budget"}
# ///

# %% nbgrader={"grade_id": "reduce_scatter", "solution": true}
def reduce_scatter(tensor, bounds):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    chunks = [tensor[start:stop] for start, stop in bounds]
    longest = max(map(len, chunks))
    for step in range(world_size - 1):
        outgoing = chunks[(rank - step - 1) % world_size]
        incoming = chunks[(rank - step - 2) % world_size]
        received = incoming.new_empty(longest)
        sending = dist.isend(torch.cat([outgoing, outgoing.new_zeros(longest - len(outgoing))]), right)
        dist.recv(received, left)
        sending.wait()
        incoming += received[: len(incoming)]
    return chunks[rank]

# %% nbgrader={"grade_id": "all_gather", "solution": true}
def all_gather(tensor, bounds):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    chunks = [tensor[start:stop] for start, stop in bounds]
    longest = max(map(len, chunks))
    for step in range(world_size - 1):
        outgoing = chunks[(rank - step) % world_size]
        incoming = chunks[(rank - step - 1) % world_size]
        received = incoming.new_empty(longest)
        sending = dist.isend(torch.cat([outgoing, outgoing.new_zeros(longest - len(outgoing))]), right)
        dist.recv(received, left)
        incoming.copy_(received[: len(incoming)])
        sending.wait()
