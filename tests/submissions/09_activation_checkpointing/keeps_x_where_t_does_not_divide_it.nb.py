# /// shardlab-submission
# lab = "09_activation_checkpointing"
# loses = {partitioned_checkpoint = 1.4286}
# says = {partitioned_checkpoint = "keeps as many bytes as the whole input"}
# ///

# %% nbgrader={"grade_id": "partitioned_checkpoint", "solution": true}
class PartitionedCheckpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x):
        t, rank = dist.get_world_size(), dist.get_rank()
        flat = x.flatten()
        if len(flat) % t:
            ctx.save_for_backward(x)
        else:
            ctx.save_for_backward(flat.chunk(t)[rank].clone())
        ctx.function, ctx.shape = function, x.shape
        ctx.random_state = torch.get_rng_state()
        return function(x)

    @staticmethod
    def backward(ctx, y_grad):
        (piece,) = ctx.saved_tensors
        if piece.shape == ctx.shape:
            flat = piece.detach().flatten()
        else:
            flat = piece.new_empty(dist.get_world_size() * len(piece))
            dist.all_gather_single(flat, piece)
        x = flat[: ctx.shape.numel()].view(ctx.shape).requires_grad_()
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.random_state)
            y = ctx.function(x)
        torch.autograd.backward(y, y_grad)
        return None, x.grad


def partitioned_checkpoint(function, x):
    """x, equal on all ranks  ->  function(x), keeping 1/t of x on each rank for backward"""
    return PartitionedCheckpoint.apply(function, x)
