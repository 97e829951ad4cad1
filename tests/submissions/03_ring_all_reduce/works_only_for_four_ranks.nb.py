# /// shardlab-submission
# lab = "03_ring_all_reduce"
# loses = {reduce_scatter = 3.0}
# says = {reduce_scatter = "Every case with N = 4 passes"}
# ///

# %% nbgrader={"grade_id": "reduce_scatter", "solution": true}
def reduce_scatter(tensor, bounds):
    rank = dist.get_rank()
    chunks = [tensor[start:stop] for start, stop in bounds]
    for step in range(3):
        incoming = chunks[(rank - step - 2) % 4]
        received = torch.empty_like(incoming)
        sending = dist.isend(chunks[(rank - step - 1) % 4], (rank + 1) % 4)
        dist.recv(received, (rank - 1) % 4)
        sending.wait()
        incoming += received
    return chunks[rank]
