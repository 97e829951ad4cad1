# /// shardlab-submission
# lab = "03_ring_all_reduce"
# loses = {reduce_scatter = 5.0}
# says = {reduce_scatter = "is it read before it has arrived"}
# ///

# %% nbgrader={"grade_id": "reduce_scatter", "solution": true}
def reduce_scatter(tensor, bounds):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    chunks = [tensor[start:stop] for start, stop in bounds]
    for step in range(world_size - 1):
        outgoing = chunks[(rank - step - 1) % world_size]
        incoming = chunks[(rank - step - 2) % world_size]
        received = torch.zeros_like(incoming)
        sending = dist.isend(outgoing, right)
        receiving = dist.irecv(received, left)
        incoming += received
        receiving.wait()
        sending.wait()
    return chunks[rank]
