# /// shardlab-submission
# lab = "09_activation_checkpointing"
# loses = {checkpoint_sequential = 1.6667}
# says = {checkpoint_sequential = "counts 4 bytes for each element of x"}
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

    input_bytes, max_lengths = x.numel() * 4, []
    while sum(max_lengths) < len(layers):
        max_lengths.append((budget_bytes - len(max_lengths) * input_bytes) // kept_bytes)
        if max_lengths[-1] < 1:
            raise ValueError("no cut of these layers fits the budget")
    start, last_start = 0, max(0, len(layers) - max_lengths[-1])
    for max_length in max_lengths[:-1]:
        stop = min(start + max_length, last_start)
        x = checkpoint(in_order(layers[start:stop]), x)
        start = stop
    return in_order(layers[start:])(x)
