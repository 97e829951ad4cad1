# %% nbgrader={"grade_id": "chunk_bounds", "solution": true}
def chunk_bounds(length, world_size):
    # the first `extra` chunks get one more element
    chunk_size = length // world_size
    extra = length - chunk_size * world_size
    result = []
    for i in range(world_size):
        begin = i * chunk_size + min(i, extra)
        end = begin + chunk_size + (1 if i < extra else 0)
        result.append((begin, end))
    return result

# %% nbgrader={"grade_id": "reduce_scatter", "solution": true}
def reduce_scatter(tensor, bounds):
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    right = (rank + 1) % world_size
    left = (rank - 1) % world_size
    for step in range(world_size - 1):
        # which chunk do I pass on in this step, and which one comes in
        send_chunk = (rank - step - 1) % world_size
        recv_chunk = (rank - step - 2) % world_size
        send_tensor = tensor[bounds[send_chunk][0]:bounds[send_chunk][1]]
        recv_tensor = torch.empty(bounds[recv_chunk][1] - bounds[recv_chunk][0], dtype=tensor.dtype)
        # isend so that not everybody waits
        req = dist.isend(send_tensor, right)
        dist.recv(recv_tensor, left)
        req.wait()
        # add what came in
        tensor[bounds[recv_chunk][0]:bounds[recv_chunk][1]] += recv_tensor
    return tensor[bounds[rank][0]:bounds[rank][1]]

# %% nbgrader={"grade_id": "all_gather", "solution": true}
def all_gather(tensor, bounds):
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    right = (rank + 1) % world_size
    left = (rank - 1) % world_size
    for step in range(world_size - 1):
        send_chunk = (rank - step) % world_size
        recv_chunk = (rank - step - 1) % world_size
        send_tensor = tensor[bounds[send_chunk][0]:bounds[send_chunk][1]]
        recv_tensor = tensor[bounds[recv_chunk][0]:bounds[recv_chunk][1]]
        req = dist.isend(send_tensor, right)
        dist.recv(recv_tensor, left)
        req.wait()

# %% nbgrader={"grade_id": "ring_all_reduce", "solution": true}
def ring_all_reduce(tensor, op="sum"):
    world_size = dist.get_world_size()
    bounds = chunk_bounds(len(tensor), world_size)
    my_chunk = reduce_scatter(tensor, bounds)
    if op == "mean":
        my_chunk /= world_size
    all_gather(tensor, bounds)

# %% nbgrader={"grade_id": "bytes_per_rank", "solution": true}
def bytes_per_rank(length, element_bytes, world_size):
    # 2 phases, each world_size - 1 steps, each one chunk
    chunk_bytes = length * element_bytes / world_size
    return 2 * (world_size - 1) * chunk_bytes
