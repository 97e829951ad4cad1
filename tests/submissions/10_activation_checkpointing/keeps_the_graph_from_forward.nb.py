# /// shardlab-submission
# lab = "10_activation_checkpointing"
# loses = {checkpoint = 6}
# says = {checkpoint = "gives the wrong number in 'runs of each block'"}
# ///

# %% nbgrader={"grade_id": "checkpoint", "solution": true}
class Checkpoint(torch.autograd.Function):
    """Builds the graph in forward and uses it in backward."""

    @staticmethod
    def forward(ctx, function, *args):
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        ctx.leaves = [each.detach().requires_grad_(each.requires_grad) for each in tensors]
        rest = iter(ctx.leaves)
        ctx.args = [next(rest) if isinstance(each, torch.Tensor) else each for each in args]
        with torch.enable_grad():
            ctx.outputs = function(*ctx.args)
        if isinstance(ctx.outputs, tuple):
            return tuple(each.detach() for each in ctx.outputs)
        return ctx.outputs.detach()

    @staticmethod
    def backward(ctx, *grads):
        outputs = ctx.outputs if isinstance(ctx.outputs, tuple) else (ctx.outputs,)
        pairs = [(y, grad) for y, grad in zip(outputs, grads) if y.requires_grad]
        torch.autograd.backward(*zip(*pairs))
        return None, *[each.grad if isinstance(each, torch.Tensor) else None for each in ctx.args]


def checkpoint(function, *args):
    return Checkpoint.apply(function, *args)
