# /// shardlab-submission
# lab = "03_ring_all_reduce"
# loses = {ring_all_reduce = 2.0}
# says = {ring_all_reduce = "sends or receives nearly all bytes"}
# ///
# Right values everywhere; only the bytes show the mistake. With two ranks a hub is a ring.

# %% nbgrader={"grade_id": "ring_all_reduce", "solution": true}
def ring_all_reduce(tensor, op="sum"):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        for peer in range(1, world_size):
            received = torch.empty_like(tensor)
            dist.recv(received, peer)
            tensor += received
        if op == "mean":
            tensor /= world_size
        for peer in range(1, world_size):
            dist.send(tensor, peer)
    else:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)
