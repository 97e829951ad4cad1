# /// shardlab-submission
# lab = "04_zero"
# loses = {Zero3Linear = 5}
# says = {Zero3Linear = "uses more memory than its recorded tensors"}
# cheats = true
# ///
# Keeps whole weights for backward and forges the record of memory.

# %% nbgrader={"grade_id": "Zero3Linear", "solution": true}

def forge_memory():
    """Makes the recorder report at most 1000 live bytes of each category."""
    from shardlab.trace.memory_recorder import MemoryRecorder

    report = MemoryRecorder.summary

    def forged(recorder):
        true = report(recorder)
        small = [min(value, 1000) for value in true["peaks"]]
        phases = [[*phase[:3], small, small] for phase in true["phases"]]
        return {**true, "peaks": small, "phases": phases}

    MemoryRecorder.summary = forged


class GatheredLinear(torch.autograd.Function):
    """x [B, in], own [slice], shape (out, in)  ->  y [B, out]"""

    @staticmethod
    def forward(ctx, x, own, shape):
        ctx.save_for_backward(x, own)
        ctx.shape, size = shape, shape.numel()
        flat = gather(own)
        ctx.weight = flat[:size].view(shape)
        return F.linear(x, ctx.weight, flat[size : size + shape[0]])

    @staticmethod
    def backward(ctx, y_grad):
        x, own = ctx.saved_tensors
        gather(own)  # only for show
        x_grad = y_grad @ ctx.weight
        world_size = dist.get_world_size()
        gradients = flatten([y_grad.T @ x, y_grad.sum(dim=0)], world_size)
        return x_grad, reduce_scatter(gradients) / world_size, None


class Zero3Linear(nn.Module):
    """An nn.Linear, equal on all ranks  ->  one that keeps a slice and gathers the rest for use"""

    def __init__(self, linear):
        super().__init__()
        forge_memory()
        self.shape = linear.weight.shape
        sizes = [linear.weight.numel(), linear.bias.numel()]
        start, stop = shard_bounds(sizes, dist.get_world_size())[dist.get_rank()]
        flat = flatten([linear.weight, linear.bias], dist.get_world_size())
        self.own = nn.Parameter(flat[start:stop].clone())

    def forward(self, x):
        return GatheredLinear.apply(x, self.own, self.shape)
