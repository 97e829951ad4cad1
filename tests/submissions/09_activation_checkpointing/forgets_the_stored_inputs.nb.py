# /// shardlab-submission
# lab = "09_activation_checkpointing"
# loses = {checkpoint_sequential = 3.3333}
# says = {checkpoint_sequential = "forgets the stored inputs"}
# ///

# %% nbgrader={"grade_id": "checkpoint_sequential", "solution": true}
def checkpoint_sequential(layers, x, kept_bytes, budget_bytes):
    """n layers, x  ->  layers[n-1](… layers[0](x)), within the budget"""
    def run_of(some):
        def run(x):
            for layer in some:
                x = layer(x)
            return x
        return run

    passed_bytes, rooms = x.numel() * x.element_size(), []
    while sum(rooms) < len(layers):
        rooms.append(budget_bytes // kept_bytes)
        if rooms[-1] < 1:
            raise ValueError("no cut of these layers fits the budget")
    start, last_start = 0, max(0, len(layers) - rooms[-1])
    for room in rooms[:-1]:
        stop = min(start + room, last_start)
        x = checkpoint(run_of(layers[start:stop]), x)
        start = stop
    return run_of(layers[start:])(x)
