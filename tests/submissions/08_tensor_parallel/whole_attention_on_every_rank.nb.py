# /// shardlab-submission
# lab = "08_tensor_parallel"
# loses = {tp_attention = 4.0}
# says = {tp_attention = "holds the whole weights"}
# ///

# %% nbgrader={"grade_id": "tp_attention", "solution": true}
def tp_attention(attention):
    return attention
