# /// shardlab-submission
# lab = "10_activation_checkpointing"
# loses = {checkpoint_sequential = 0.4167}
# says = {checkpoint_sequential = "gives a segment a layer for which it has no room"}
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
        rooms.append(max(1, room))
    last = max(0, n - rooms[-1])
    start = 0
    for room in rooms[:-1]:
        stop = min(start + room, last)
        x = checkpoint(functools.partial(run, layers[start:stop]), x)
        start = stop
    return run(layers[last:], x)
