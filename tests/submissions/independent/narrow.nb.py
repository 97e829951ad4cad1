# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
def chunk_bounds(length, world_size):
    small = length // world_size
    n_big = length % world_size
    bounds = [(r * (small + 1), (r + 1) * (small + 1)) for r in range(n_big)]
    offset = n_big * (small + 1)
    for r in range(world_size - n_big):
        bounds.append((offset + r * small, offset + (r + 1) * small))
    return bounds

# %% nbgrader={"grade_id": "reduce_scatter", "solution": true}
def reduce_scatter(tensor, bounds):
    world = dist.get_world_size()
    rank = dist.get_rank()
    dst = (rank + 1) % world
    src = (rank - 1) % world
    def chunk(i):
        start, end = bounds[i % world]
        return tensor.narrow(0, start, end - start)
    for step in range(1, world):
        send_op = dist.isend(chunk(rank - step), dst=dst)
        received = torch.empty_like(chunk(rank - step - 1))
        recv_op = dist.irecv(received, src=src)
        recv_op.wait()
        chunk(rank - step - 1).add_(received)
        send_op.wait()
    return chunk(rank)

# %% nbgrader={"grade_id": "all_gather", "solution": true}
def all_gather(tensor, bounds):
    world = dist.get_world_size()
    rank = dist.get_rank()
    def chunk(i):
        start, end = bounds[i % world]
        return tensor.narrow(0, start, end - start)
    for step in range(world - 1):
        send_op = dist.isend(chunk(rank - step), dst=(rank + 1) % world)
        recv_op = dist.irecv(chunk(rank - step - 1), src=(rank - 1) % world)
        recv_op.wait()
        send_op.wait()

# %% nbgrader={"grade_id": "ring_all_reduce", "solution": true}
def ring_all_reduce(tensor, op="sum"):
    world = dist.get_world_size()
    bounds = chunk_bounds(len(tensor), world)
    reduced = reduce_scatter(tensor, bounds)
    if op == "mean":
        reduced.copy_(reduced.div(world))
    all_gather(tensor, bounds)

# %% nbgrader={"grade_id": "bytes_per_rank", "solution": true}
def bytes_per_rank(length, element_bytes, world_size):
    bytes_total = length * element_bytes
    reduce_scatter_bytes = bytes_total * (world_size - 1) / world_size
    all_gather_bytes = reduce_scatter_bytes
    return reduce_scatter_bytes + all_gather_bytes
