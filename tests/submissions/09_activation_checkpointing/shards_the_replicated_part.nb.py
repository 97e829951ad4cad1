# /// shardlab-submission
# lab = "09_activation_checkpointing"
# loses = {activation_bytes = 2.8571}
# says = {activation_bytes = "divides 10sbh by t and keeps 24sbh whole"}
# ///

# %% nbgrader={"grade_id": "activation_bytes", "solution": true}
def activation_bytes(
    tokens, samples, width, heads, tp_size=1, sequence_parallel=False, recompute="none"
):
    sbh = tokens * samples * width
    sp_size = tp_size if sequence_parallel else 1
    if recompute == "full":
        return 2 * sbh / sp_size
    scores = 0 if recompute == "selective" else 5 * heads * tokens / width
    return sbh * (24 / sp_size + 10 / tp_size + scores / tp_size)
