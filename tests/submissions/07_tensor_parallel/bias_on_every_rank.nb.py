# /// shardlab-submission
# lab = "07_tensor_parallel"
# typed = true
# loses = {RowLinear = 4.0}
# says = {RowLinear = "adds the bias on every rank"}
# ///

# %% nbgrader={"grade_id": "RowLinear", "solution": true}
class SumOverRanks(torch.autograd.Function):
    """Forward: all ranks' summands, added up. Backward: the gradient as it is."""

    @staticmethod
    def forward(ctx, summand):
        y = summand.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, y_grad):
        return y_grad


class RowLinear(nn.Module):
    """An nn.Linear, equal on all ranks  ->  its r-th block of rows on rank r, and the whole bias"""

    def __init__(self, linear):
        super().__init__()
        share = linear.weight.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]
        self.weight = nn.Parameter(share.detach().clone())
        self.bias = nn.Parameter(linear.bias.detach().clone())

    def forward(self, x):
        """x [..., in/N]  ->  [..., out]"""
        return SumOverRanks.apply(F.linear(x, self.weight, self.bias))
