# /// shardlab-submission
# lab = "10_activation_checkpointing"
# typed = true
# loses = {checkpoint = 4}
# says = {checkpoint = "with different random numbers"}
# ///

# %% nbgrader={"grade_id": "checkpoint", "solution": true}
class Checkpoint(torch.autograd.Function):
    """Keeps the arguments of function and runs it again in backward."""

    @staticmethod
    def forward(ctx, function, *args):
        ctx.function, ctx.random_state = function, torch.get_rng_state()
        ctx.is_tensor = [isinstance(each, torch.Tensor) for each in args]
        ctx.others = [each for each in args if not isinstance(each, torch.Tensor)]
        ctx.save_for_backward(*[each for each in args if isinstance(each, torch.Tensor)])
        return function(*args)

    @staticmethod
    def backward(ctx, *grads):
        leaves = [each.detach().requires_grad_(each.requires_grad) for each in ctx.saved_tensors]
        tensors, others = iter(leaves), iter(ctx.others)
        args = [next(tensors) if is_tensor else next(others) for is_tensor in ctx.is_tensor]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            pass
            outputs = ctx.function(*args)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        pairs = [
            (output, grad)
            for output, grad in zip(outputs, grads)
            if isinstance(output, torch.Tensor) and output.requires_grad
        ]
        torch.autograd.backward(*zip(*pairs))
        return None, *[each.grad if isinstance(each, torch.Tensor) else None for each in args]


def checkpoint(function, *args):
    """function(*args), keeping only args for backward"""
    return Checkpoint.apply(function, *args)
