# /// shardlab-submission
# lab = "09_activation_checkpointing"
# loses = {activation_bytes = 2.8571}
# says = {activation_bytes = "divides the stored input by t"}
# ///

# %% nbgrader={"grade_id": "activation_bytes", "solution": true}
def activation_bytes(
    tokens, samples, width, heads, tp_size=1, sequence_parallel=False, recompute="none"
):
    """(8, 1, 4, 2)  ->  1728; without the scores, 34 · 32 = 1088"""
    sbh = tokens * samples * width
    sp_size = tp_size if sequence_parallel else 1
    if recompute == "full":
        return 2 * sbh / tp_size
    scores = 5 * heads * tokens / width if recompute == "none" else 0
    return sbh * (10 / sp_size + 24 / tp_size + scores / tp_size)
