# /// shardlab-submission
# lab = "10_activation_checkpointing"
# loses = {checkpoint_sequential = 4.1667}
# says = {checkpoint_sequential = "cuts into segments of equal length"}
# ///

# %% nbgrader={"grade_id": "checkpoint_sequential", "solution": true}
def checkpoint_sequential(layers, x, kept_bytes, budget_bytes):
    """n layers in segments of √n"""
    if kept_bytes > budget_bytes:
        raise ValueError("no cut of these layers fits the budget")

    def in_order(some):
        def run(x):
            for layer in some:
                x = layer(x)
            return x
        return run

    length = round(len(layers) ** 0.5)
    starts = list(range(0, len(layers), length))
    for start in starts[:-1]:
        x = checkpoint(in_order(layers[start : start + length]), x)
    return in_order(layers[starts[-1] :])(x)
