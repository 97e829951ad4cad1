# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
def chunk_bounds(length, world_size):
    base = length // world_size
    rem = length % world_size
    sizes = [base + 1] * rem + [base] * (world_size - rem)
    ends = [sum(sizes[: i + 1]) for i in range(world_size)]
    return [(end - size, end) for end, size in zip(ends, sizes)]

# %% nbgrader={"grade_id": "reduce_scatter", "solution": true}
def reduce_scatter(tensor, bounds):
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    next_rank = rank + 1 if rank + 1 < world_size else 0
    prev_rank = rank - 1 if rank > 0 else world_size - 1
    current = prev_rank
    for _ in range(world_size - 1):
        start, stop = bounds[current]
        request = dist.isend(tensor[start:stop].clone(), dst=next_rank)
        current = (current - 1) % world_size
        start, stop = bounds[current]
        incoming = torch.empty_like(tensor[start:stop])
        dist.recv(incoming, src=prev_rank)
        tensor[start:stop].add_(incoming)
        request.wait()
    return tensor[bounds[rank][0] : bounds[rank][1]]

# %% nbgrader={"grade_id": "all_gather", "solution": true}
def all_gather(tensor, bounds):
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    current = rank
    for _ in range(world_size - 1):
        start, stop = bounds[current]
        request = dist.isend(tensor[start:stop], dst=(rank + 1) % world_size)
        current = (current - 1) % world_size
        start, stop = bounds[current]
        dist.recv(tensor[start:stop], src=(rank - 1) % world_size)
        request.wait()

# %% nbgrader={"grade_id": "ring_all_reduce", "solution": true}
def ring_all_reduce(tensor, op="sum"):
    bounds = chunk_bounds(tensor.shape[0], dist.get_world_size())
    part = reduce_scatter(tensor, bounds)
    if op == "mean":
        part.copy_(part / dist.get_world_size())
    all_gather(tensor, bounds)

# %% nbgrader={"grade_id": "bytes_per_rank", "solution": true}
def bytes_per_rank(length, element_bytes, world_size):
    return 2 * length * element_bytes * (world_size - 1) / world_size
