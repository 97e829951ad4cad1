# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
def chunk_bounds(length, world_size):
    bounds = []
    start = 0
    for r in range(world_size):
        size = length // world_size
        if r < length % world_size:
            size += 1
        bounds.append((start, start + size))
        start += size
    return bounds

# %% nbgrader={"grade_id": "reduce_scatter", "solution": true}
def reduce_scatter(tensor, bounds):
    n = dist.get_world_size()
    me = dist.get_rank()
    for s in range(n - 1):
        send_idx = (me - 1 - s) % n
        recv_idx = (me - 2 - s) % n
        a, b = bounds[send_idx]
        c, d = bounds[recv_idx]
        buf = torch.zeros(d - c, dtype=tensor.dtype)
        ops = [
            dist.P2POp(dist.isend, tensor[a:b], (me + 1) % n),
            dist.P2POp(dist.irecv, buf, (me - 1) % n),
        ]
        for req in dist.batch_isend_irecv(ops):
            req.wait()
        tensor[c:d] += buf
    lo, hi = bounds[me]
    return tensor[lo:hi]

# %% nbgrader={"grade_id": "all_gather", "solution": true}
def all_gather(tensor, bounds):
    n = dist.get_world_size()
    me = dist.get_rank()
    for s in range(n - 1):
        a, b = bounds[(me - s) % n]
        c, d = bounds[(me - s - 1) % n]
        ops = [
            dist.P2POp(dist.isend, tensor[a:b], (me + 1) % n),
            dist.P2POp(dist.irecv, tensor[c:d], (me - 1) % n),
        ]
        for req in dist.batch_isend_irecv(ops):
            req.wait()

# %% nbgrader={"grade_id": "ring_all_reduce", "solution": true}
def ring_all_reduce(tensor, op="sum"):
    n = dist.get_world_size()
    b = chunk_bounds(tensor.numel(), n)
    mine = reduce_scatter(tensor, b)
    if op == "mean":
        mine.div_(n)
    all_gather(tensor, b)

# %% nbgrader={"grade_id": "bytes_per_rank", "solution": true}
def bytes_per_rank(length, element_bytes, world_size):
    # reduce-scatter and all-gather send the same
    one_phase = (world_size - 1) / world_size * length * element_bytes
    return 2 * one_phase
