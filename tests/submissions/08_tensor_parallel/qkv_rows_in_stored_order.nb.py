# /// shardlab-submission
# lab = "08_tensor_parallel"
# loses = {tp_attention = 4.0}
# says = {tp_attention = "splits the rows of qkv in stored order"}
# ///

# %% nbgrader={"grade_id": "tp_attention", "solution": true}
def tp_attention(attention):
    attention.heads //= dist.get_world_size()
    attention.qkv = ColumnLinear(attention.qkv)
    attention.out = RowLinear(attention.out)
    return attention
