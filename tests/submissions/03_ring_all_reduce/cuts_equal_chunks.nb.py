# /// shardlab-submission
# lab = "03_ring_all_reduce"
# loses = {reduce_scatter = 1.5}
# says = {reduce_scatter = "cuts tensor into equal chunks"}
# ///
# %% nbgrader={"grade_id": "reduce_scatter", "solution": true}
def reduce_scatter(tensor, bounds):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    chunks = list(tensor.tensor_split(world_size))
    for step in range(world_size - 1):
        outgoing = chunks[(rank - step - 1) % world_size]
        incoming = chunks[(rank - step - 2) % world_size]
        received = torch.empty_like(incoming)
        sending = dist.isend(outgoing, right)
        dist.recv(received, left)
        sending.wait()
        incoming += received
    return chunks[rank]
