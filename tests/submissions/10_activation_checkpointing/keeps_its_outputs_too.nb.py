# /// shardlab-submission
# lab = "10_activation_checkpointing"
# loses = {checkpoint = 1.0}
# says = {checkpoint = "is over its budget"}
# ///
# The second run computes them again.

# %% nbgrader={"grade_id": "checkpoint", "solution": true}
class Checkpoint(torch.autograd.Function):
    """Keeps the arguments of function and runs it again in backward."""

    @staticmethod
    def forward(ctx, function, *args):
        ctx.function = function
        ctx.is_tensor = [isinstance(a, torch.Tensor) for a in args]
        ctx.others = [None if t else a for a, t in zip(args, ctx.is_tensor)]
        ctx.random_state = torch.get_rng_state()
        ctx.set_materialize_grads(False)
        y = function(*args)
        ys = y if isinstance(y, tuple) else (y,)
        ctx.save_for_backward(*[a for a, t in zip(args, ctx.is_tensor) if t], *ys)
        return y

    @staticmethod
    def backward(ctx, *grads):
        saved = iter(ctx.saved_tensors)
        args = []
        for other, is_tensor in zip(ctx.others, ctx.is_tensor):
            if is_tensor:
                t = next(saved)
                args.append(t.detach().requires_grad_(t.requires_grad))
            else:
                args.append(other)
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.random_state)
            outputs = ctx.function(*args)
        if isinstance(outputs, torch.Tensor):
            outputs = (outputs,)
        pairs = [(o, g) for o, g in zip(outputs, grads) if o.requires_grad and g is not None]
        if pairs:
            torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs])
        return None, *[a.grad if t else None for a, t in zip(args, ctx.is_tensor)]


def checkpoint(function, *args):
    """function(*args), keeping only args for backward"""
    return Checkpoint.apply(function, *args)
