# /// shardlab-submission
# lab = "04_zero"
# loses = {Zero3Linear = 5.0}
# says = {Zero3Linear = "flattens the bias before the weight"}
# ///

# %% nbgrader={"grade_id": "Zero3Linear", "solution": true}
class GatheredLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, own, shape):
        ctx.save_for_backward(x, own)
        ctx.shape = shape
        flat = gather(own)
        numel = shape.numel()
        return functional.linear(x, flat[:numel].view(shape), flat[numel : numel + shape[0]])

    @staticmethod
    def backward(ctx, y_grad):
        x, own = ctx.saved_tensors
        n = dist.get_world_size()
        weight = gather(own)[: ctx.shape.numel()].view(ctx.shape)
        x_grad = y_grad @ weight
        del weight
        grads = flatten([y_grad.sum(dim=0), y_grad.T @ x], n)
        return x_grad, reduce_scatter(grads) / n, None


class Zero3Linear(nn.Module):
    def __init__(self, linear):
        super().__init__()
        n, rank = dist.get_world_size(), dist.get_rank()
        flat = flatten([linear.weight, linear.bias], n)
        start, stop = shard_bounds([linear.weight.numel(), linear.bias.numel()], n)[rank]
        self.own = nn.Parameter(flat[start:stop].clone())
        self.shape = linear.weight.shape

    def forward(self, x):
        return GatheredLinear.apply(x, self.own, self.shape)
