# /// shardlab-submission
# lab = "07_tensor_parallel"
# loses = {ColumnLinear = 4.0}
# says = {ColumnLinear = "keeps the whole weight alive"}
# ///

# %% nbgrader={"grade_id": "ColumnLinear", "solution": true}
class CopyToRanks(torch.autograd.Function):
    """Forward: x unchanged. Backward: the sum of all ranks' gradients."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, y_grad):
        x_grad = y_grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(x_grad)
        return x_grad


class ColumnLinear(nn.Module):
    """An nn.Linear, equal on all ranks  ->  block r of its columns on rank r"""

    def __init__(self, linear):
        super().__init__()
        world_size, rank = dist.get_world_size(), dist.get_rank()
        self.weight = nn.Parameter(linear.weight.detach().chunk(world_size)[rank])
        self.bias = nn.Parameter(linear.bias.chunk(world_size)[rank].detach().clone())

    def forward(self, x):
        """x [..., in]  ->  [..., out/N]"""
        return functional.linear(CopyToRanks.apply(x), self.weight, self.bias)
