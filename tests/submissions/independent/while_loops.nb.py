# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
def chunk_bounds(length, world_size):
    starts = [0]
    left = length
    for remaining in range(world_size, 0, -1):
        take = -(-left // remaining)
        starts.append(starts[-1] + take)
        left -= take
    return [(starts[i], starts[i + 1]) for i in range(world_size)]

# %% nbgrader={"grade_id": "reduce_scatter", "solution": true}
def reduce_scatter(tensor, bounds):
    p = dist.get_world_size()
    id = dist.get_rank()
    succ = (id + 1) % p
    pred = (id + p - 1) % p
    block = [tensor[bounds[j][0]:bounds[j][1]] for j in range(p)]
    j = pred
    t = 1
    while t < p:
        target = block[(j - 1) % p]
        temp = target.new_empty(target.size())
        handles = [dist.isend(block[j], succ), dist.irecv(temp, pred)]
        for h in handles:
            h.wait()
        target += temp
        j = (j - 1) % p
        t += 1
    return block[id]

# %% nbgrader={"grade_id": "all_gather", "solution": true}
def all_gather(tensor, bounds):
    p = dist.get_world_size()
    id = dist.get_rank()
    block = [tensor[bounds[j][0]:bounds[j][1]] for j in range(p)]
    t = 0
    while t < p - 1:
        handles = [
            dist.isend(block[(id - t) % p], (id + 1) % p),
            dist.irecv(block[(id - t - 1) % p], (id + p - 1) % p),
        ]
        for h in handles:
            h.wait()
        t += 1

# %% nbgrader={"grade_id": "ring_all_reduce", "solution": true}
def ring_all_reduce(tensor, op="sum"):
    p = dist.get_world_size()
    bounds = chunk_bounds(len(tensor), p)
    result = reduce_scatter(tensor, bounds)
    if op == "mean":
        torch.div(result, p, out=result)
    all_gather(tensor, bounds)

# %% nbgrader={"grade_id": "bytes_per_rank", "solution": true}
def bytes_per_rank(length, element_bytes, world_size):
    p = world_size
    m = length * element_bytes
    return 2 * m * (1 - 1 / p)
