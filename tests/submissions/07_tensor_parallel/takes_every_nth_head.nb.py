# /// shardlab-submission
# lab = "07_tensor_parallel"
# loses = {tp_attention = 3.2}
# says = {tp_attention = "takes every N-th head from qkv"}
# ///

# %% nbgrader={"grade_id": "tp_attention", "solution": true}
def tp_attention(attention):
    world_size, heads = dist.get_world_size(), attention.heads
    for tensor in (attention.qkv.weight, attention.qkv.bias):
        dealt = tensor.detach().unflatten(0, (3, heads // world_size, world_size, -1))
        with torch.no_grad():
            tensor.copy_(dealt.movedim(2, 0).flatten(0, 3))
    attention.heads //= world_size
    attention.qkv = ColumnLinear(attention.qkv)
    attention.out = RowLinear(attention.out)
    return attention
