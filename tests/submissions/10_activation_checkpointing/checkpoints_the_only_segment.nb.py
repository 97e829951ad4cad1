# /// shardlab-submission
# lab = "10_activation_checkpointing"
# loses = {checkpoint_sequential = 0.4167}
# says = {checkpoint_sequential = "computes the last segment twice, too"}
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
    if len(rooms) == 1:
        return checkpoint(functools.partial(run, layers), x)
    start = 0
    for room in rooms[:-1]:
        stop = min(start + room, last)
        x = checkpoint(functools.partial(run, layers[start:stop]), x)
        start = stop
    return run(layers[last:], x)
