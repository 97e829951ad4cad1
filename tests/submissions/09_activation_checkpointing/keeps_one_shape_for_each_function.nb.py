# /// shardlab-submission
# lab = "09_activation_checkpointing"
# loses = {partitioned_checkpoint = 0.7143}
# says = {partitioned_checkpoint = "failed"}
# ///

# %% nbgrader={"grade_id": "partitioned_checkpoint", "solution": true}
class PartitionedCheckpoint(torch.autograd.Function):
    """Keeps this rank's piece of x; gathers x and runs function again in backward."""

    @staticmethod
    def forward(ctx, function, x):
        tp_rank, tp_size = dist.get_rank(), dist.get_world_size()
        function.shape = x.shape
        ctx.function, ctx.shape, ctx.random_state = function, x.shape, torch.get_rng_state()
        flat = functional.pad(x.flatten(), (0, -x.numel() % tp_size))
        ctx.save_for_backward(flat.chunk(tp_size)[tp_rank].clone())
        return function(x)

    @staticmethod
    def backward(ctx, y_grad):
        (piece,) = ctx.saved_tensors
        flat = piece.new_empty(dist.get_world_size() * len(piece))
        dist.all_gather_single(flat, piece)
        x = flat[: ctx.function.shape.numel()].view(ctx.function.shape).requires_grad_()
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.random_state)
            y = ctx.function(x)
        torch.autograd.backward(y, y_grad)
        return None, x.grad


def partitioned_checkpoint(function, x):
    """x, equal on all ranks  ->  function(x), keeping 1/t of x on each rank for backward"""
    return PartitionedCheckpoint.apply(function, x)
