# /// shardlab-submission
# lab = "09_activation_checkpointing"
# loses = {activation_bytes = 4.0}
# says = {activation_bytes = "counts the attention scores of one head"}
# ///

# %% nbgrader={"grade_id": "activation_bytes", "solution": true}
def activation_bytes(
    tokens, samples, width, heads, tp_size=1, sequence_parallel=False, recompute="none"
):
    sbh = tokens * samples * width
    sp_size = tp_size if sequence_parallel else 1
    if recompute == "full":
        return 2 * sbh / sp_size
    scores = 0 if recompute == "selective" else 5 * tokens / width
    return sbh * (10 / sp_size + 24 / tp_size + scores / tp_size)
