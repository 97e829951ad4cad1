# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
from itertools import accumulate

def chunk_bounds(length, world_size):
    sizes = [len(range(r, length, world_size)) for r in range(world_size)]
    edges = [0, *accumulate(sizes)]
    return list(zip(edges, edges[1:]))

# %% nbgrader={"grade_id": "reduce_scatter", "solution": true}
def exchange(outgoing, incoming):
    """Send to the right while receiving from the left."""
    rank, n = dist.get_rank(), dist.get_world_size()
    pending = dist.isend(outgoing.contiguous(), (rank + 1) % n)
    dist.recv(incoming, (rank - 1 + n) % n)
    pending.wait()
    return incoming

def reduce_scatter(tensor, bounds):
    rank = dist.get_rank()
    n = len(bounds)
    view = lambda i: tensor[bounds[i % n][0]:bounds[i % n][1]]
    for i in range(rank - 1, rank - n, -1):
        view(i - 1).add_(exchange(view(i), torch.empty_like(view(i - 1))))
    return view(rank)

# %% nbgrader={"grade_id": "all_gather", "solution": true}
def all_gather(tensor, bounds):
    rank = dist.get_rank()
    n = len(bounds)
    view = lambda i: tensor[bounds[i % n][0]:bounds[i % n][1]]
    for i in range(rank, rank - n + 1, -1):
        exchange(view(i), view(i - 1))

# %% nbgrader={"grade_id": "ring_all_reduce", "solution": true}
def ring_all_reduce(tensor, op="sum"):
    n = dist.get_world_size()
    bounds = chunk_bounds(len(tensor), n)
    scattered = reduce_scatter(tensor, bounds)
    if op != "sum":
        scattered.div_(n)
    all_gather(tensor, bounds)

# %% nbgrader={"grade_id": "bytes_per_rank", "solution": true}
def bytes_per_rank(length, element_bytes, world_size):
    total = length * element_bytes
    return (total - total / world_size) * 2
