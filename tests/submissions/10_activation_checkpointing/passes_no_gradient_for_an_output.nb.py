# /// shardlab-submission
# lab = "10_activation_checkpointing"
# loses = {checkpoint = 2.0}
# says = {checkpoint = "starts backward without a gradient for an output"}
# ///

# %% nbgrader={"grade_id": "checkpoint", "solution": true}
class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, *args):
        ctx.function = function
        ctx.set_materialize_grads(False)
        ctx.is_tensor = [isinstance(a, torch.Tensor) for a in args]
        ctx.others = [None if t else a for a, t in zip(args, ctx.is_tensor)]
        ctx.save_for_backward(*[a for a in args if isinstance(a, torch.Tensor)])
        ctx.random_state = torch.get_rng_state()
        return function(*args)

    @staticmethod
    def backward(ctx, *grads):
        tensors = iter(ctx.saved_tensors)
        args = [next(tensors) if t else a for a, t in zip(ctx.others, ctx.is_tensor)]
        args = [
            a.detach().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a
            for a in args
        ]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.random_state)
            outputs = ctx.function(*args)
        if isinstance(outputs, torch.Tensor):
            outputs = (outputs,)
        pairs = [(o, g) for o, g in zip(outputs, grads) if o.requires_grad]
        torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs])
        return None, *[a.grad if isinstance(a, torch.Tensor) else None for a in args]


def checkpoint(function, *args):
    """function(*args), keeping only args for backward"""
    return Checkpoint.apply(function, *args)
