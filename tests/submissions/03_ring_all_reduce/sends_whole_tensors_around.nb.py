# /// shardlab-submission
# lab = "03_ring_all_reduce"
# loses = {ring_all_reduce = 2.0}
# says = {ring_all_reduce = "sends whole tensors"}
# ///
# Gathers every rank's whole tensor and sums. With two ranks that costs what a ring does.

# %% nbgrader={"grade_id": "ring_all_reduce", "solution": true}
def ring_all_reduce(tensor, op="sum"):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    passing = tensor.clone()
    for step in range(world_size - 1):
        received = torch.empty_like(tensor)
        sending = dist.isend(passing, (rank + 1) % world_size)
        dist.recv(received, (rank - 1) % world_size)
        sending.wait()
        tensor += received
        passing = received
    if op == "mean":
        tensor /= world_size
