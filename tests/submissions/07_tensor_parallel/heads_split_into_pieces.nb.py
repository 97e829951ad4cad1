# /// shardlab-submission
# lab = "07_tensor_parallel"
# loses = {tp_attention = 4.0}
# says = {tp_attention = "splits each head into pieces"}
# ///

# %% nbgrader={"grade_id": "tp_attention", "solution": true}
def tp_attention(attention):
    world_size, heads = dist.get_world_size(), attention.heads
    for tensor in (attention.qkv.weight, attention.qkv.bias):
        pieces = tensor.detach().unflatten(0, (3, heads, world_size, -1))
        with torch.no_grad():
            tensor.copy_(pieces.movedim(2, 0).flatten(0, 3))
    attention.qkv = ColumnLinear(attention.qkv)
    attention.out = RowLinear(attention.out)
    return attention
