# /// shardlab-submission
# lab = "07_tensor_parallel"
# loses = {tp_attention = 4.0}
# says = {tp_attention = "leaves the number of heads"}
# ///

# %% nbgrader={"grade_id": "tp_attention", "solution": true}
def tp_attention(attention):
    """models.Attention, equal on all ranks  ->  the same, with this rank's heads"""
    world_size = dist.get_world_size()
    for tensor in (attention.qkv.weight, attention.qkv.bias):
        by_rank = zip(*(part.chunk(world_size) for part in tensor.detach().chunk(3)))
        with torch.no_grad():
            tensor.copy_(torch.cat([part for of_rank in by_rank for part in of_rank]))
    attention.qkv = ColumnLinear(attention.qkv)
    attention.out = RowLinear(attention.out)
    return attention
