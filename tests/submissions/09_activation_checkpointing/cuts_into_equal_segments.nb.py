# /// shardlab-submission
# lab = "09_activation_checkpointing"
# loses = {checkpoint_sequential = 3.3333}
# says = {checkpoint_sequential = "cuts into segments of equal length"}
# ///

# %% nbgrader={"grade_id": "checkpoint_sequential", "solution": true}
def checkpoint_sequential(layers, x, kept_bytes, budget_bytes):
    """n layers, x  ->  layers[n-1](… layers[0](x)), within the budget"""
    def in_order(some):
        def run(x):
            for layer in some:
                x = layer(x)
            return x
        return run

    input_bytes, max_lengths = x.numel() * x.element_size(), []
    while sum(max_lengths) < len(layers):
        max_lengths.append((budget_bytes - len(max_lengths) * input_bytes) // kept_bytes)
        if max_lengths[-1] < 1:
            raise ValueError("no cut of these layers fits the budget")
    length = -(-len(layers) // len(max_lengths))
    starts = list(range(0, len(layers), length))
    for start in starts[:-1]:
        x = checkpoint(in_order(layers[start : start + length]), x)
    return in_order(layers[starts[-1] :])(x)
