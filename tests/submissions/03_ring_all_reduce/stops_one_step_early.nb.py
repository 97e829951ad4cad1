# /// shardlab-submission
# lab = "03_ring_all_reduce"
# loses = {reduce_scatter = 5.0}
# says = {reduce_scatter = "returns its chunk with only its own values"}
# ///

# %% nbgrader={"grade_id": "reduce_scatter", "solution": true}
def reduce_scatter(tensor, bounds):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    chunks = [tensor[start:stop] for start, stop in bounds]
    for step in range(world_size - 2):
        incoming = chunks[(rank - step - 2) % world_size]
        received = torch.empty_like(incoming)
        sending = dist.isend(chunks[(rank - step - 1) % world_size], (rank + 1) % world_size)
        dist.recv(received, (rank - 1) % world_size)
        sending.wait()
        incoming += received
    return chunks[rank]
