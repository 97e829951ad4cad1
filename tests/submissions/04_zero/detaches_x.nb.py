# /// shardlab-submission
# lab = "04_zero"
# loses = {Zero3Linear = 5.0}
# says = {Zero3Linear = "gives x no gradient"}
# ///

# %% nbgrader={"grade_id": "Zero3Linear", "solution": true}
class GatheredLinear(torch.autograd.Function):
    """x [samples, in], own [slice], shape (out, in)  ->  y [samples, out]"""

    @staticmethod
    def forward(ctx, x, own, shape):
        ctx.save_for_backward(x, own)
        ctx.shape = shape
        flat = gather(own)
        weight = flat[: shape.numel()].view(shape)
        bias = flat[shape.numel() : shape.numel() + shape[0]]
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, y_grad):
        x, own = ctx.saved_tensors
        shape = ctx.shape
        n = dist.get_world_size()
        flat = gather(own)
        x_grad = y_grad @ flat[: shape.numel()].view(shape)
        del flat
        grads = flatten([y_grad.T @ x, y_grad.sum(dim=0)], n)
        return x_grad, reduce_scatter(grads) / n, None


class Zero3Linear(nn.Module):
    """An nn.Linear, equal on all ranks  ->  one that keeps a slice and gathers the rest for use"""

    def __init__(self, linear):
        super().__init__()
        n, r = dist.get_world_size(), dist.get_rank()
        self.shape = linear.weight.shape
        flat = flatten([linear.weight, linear.bias], n)
        start, stop = shard_bounds([linear.weight.numel(), linear.bias.numel()], n)[r]
        self.own = nn.Parameter(flat[start:stop].clone())

    def forward(self, x):
        return GatheredLinear.apply(x.detach(), self.own, self.shape)
