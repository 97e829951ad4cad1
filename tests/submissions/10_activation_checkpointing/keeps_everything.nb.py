# /// shardlab-submission
# lab = "10_activation_checkpointing"
# loses = {checkpoint_sequential = 4.5833}
# says = {checkpoint_sequential = "fits the budget"}
# ///

# %% nbgrader={"grade_id": "checkpoint_sequential", "solution": true}
def checkpoint_sequential(layers, x, kept_bytes, budget_bytes):
    """The layers in order"""
    if kept_bytes > budget_bytes:
        raise ValueError("no cut of these layers fits the budget")
    for layer in layers:
        x = layer(x)
    return x
