# /// shardlab-submission
# lab = "04_zero"
# loses = {Zero3Linear = 5.0}
# says = {Zero3Linear = "keeps a tensor of a call"}
# ///

# %% nbgrader={"grade_id": "Zero3Linear", "solution": true}
class GatheredLinear(torch.autograd.Function):
    """x [B, in], own [slice], shape (out, in)  ->  y [B, out]"""

    @staticmethod
    def forward(ctx, x, own, shape):
        ctx.save_for_backward(x, own)
        ctx.shape, size = shape, shape.numel()
        flat = gather(own)
        return functional.linear(x, flat[:size].view(shape), flat[size : size + shape[0]])

    @staticmethod
    def backward(ctx, y_grad):
        x, own = ctx.saved_tensors
        x_grad = y_grad @ gather(own)[: ctx.shape.numel()].view(ctx.shape)
        world_size = dist.get_world_size()
        gradients = flatten([y_grad.T @ x, y_grad.sum(dim=0)], world_size)
        return x_grad, reduce_scatter(gradients) / world_size, None


class Zero3Linear(nn.Module):
    """An nn.Linear, equal on all ranks  ->  one that keeps a slice and gathers the rest for use"""

    def __init__(self, linear):
        super().__init__()
        self.shape = linear.weight.shape
        sizes = [linear.weight.numel(), linear.bias.numel()]
        start, stop = shard_bounds(sizes, dist.get_world_size())[dist.get_rank()]
        flat = flatten([linear.weight, linear.bias], dist.get_world_size())
        self.own = nn.Parameter(flat[start:stop].clone())
        self.inputs = []

    def forward(self, x):
        self.inputs.append(x.detach())
        return GatheredLinear.apply(x, self.own, self.shape)
