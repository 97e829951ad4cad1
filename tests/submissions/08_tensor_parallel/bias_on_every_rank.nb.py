# /// shardlab-submission
# lab = "08_tensor_parallel"
# typed = true
# loses = {RowLinear = 4.0}
# says = {RowLinear = "adds the bias before the all-reduce"}
# ///

# %% nbgrader={"grade_id": "RowLinear", "solution": true}
class SumOverRanks(torch.autograd.Function):
    """Forward: the sum of all ranks' partial sums. Backward: the gradient unchanged."""

    @staticmethod
    def forward(ctx, partial):
        y = partial.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, y_grad):
        return y_grad


class RowLinear(nn.Module):
    """An nn.Linear, equal on all ranks  ->  block r of its rows, and the whole bias, on rank r"""

    def __init__(self, linear):
        super().__init__()
        share = linear.weight.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]
        self.weight = nn.Parameter(share.detach().clone())
        self.bias = nn.Parameter(linear.bias.detach().clone())

    def forward(self, x):
        """x [..., in/N]  ->  [..., out]"""
        return SumOverRanks.apply(F.linear(x, self.weight, self.bias))
