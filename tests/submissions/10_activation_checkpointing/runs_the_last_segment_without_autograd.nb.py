# /// shardlab-submission
# lab = "10_activation_checkpointing"
# loses = {checkpoint_sequential = 4.5833}
# says = {checkpoint_sequential = "returns an output that does not require a gradient"}
# ///

# %% nbgrader={"grade_id": "checkpoint_sequential", "solution": true}
import functools


def run(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def checkpoint_sequential(layers, x, kept_bytes, budget_bytes):
    n = len(layers)
    input_bytes = x.numel() * x.element_size()
    rooms = []
    while sum(rooms) < n:
        room = (budget_bytes - len(rooms) * input_bytes) // kept_bytes
        if room < 1:
            raise ValueError("no cut fits the budget")
        rooms.append(room)
    last = max(0, n - rooms[-1])
    start = 0
    for room in rooms[:-1]:
        stop = min(start + room, last)
        x = checkpoint(functools.partial(run, layers[start:stop]), x)
        start = stop
    with torch.no_grad():
        return run(layers[last:], x)
