# /// shardlab-submission
# lab = "08_tensor_parallel"
# loses = {vocab_parallel_cross_entropy = 5.0}
# says = {vocab_parallel_cross_entropy = "has wrong values in 'logits.grad'"}
# ///

# %% nbgrader={"grade_id": "vocab_parallel_cross_entropy", "solution": true}
class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets):
        start, tokens = dist.get_rank() * logits.shape[1], torch.arange(len(targets))
        inside = (targets >= start) & (targets < start + logits.shape[1])
        here = (targets - start)[inside]
        top = logits.amax(dim=1)
        dist.all_reduce(top, op=dist.ReduceOp.MAX)
        two = torch.zeros(2, len(targets))
        two[0] = (logits - top[:, None]).exp().sum(dim=1)
        two[1, inside] = logits[tokens[inside], here]
        dist.all_reduce(two)
        gradient = (logits - (top + two[0].log())[:, None]).exp()
        gradient[tokens[inside], here] -= 1
        ctx.save_for_backward(gradient / len(targets))
        return (top + two[0].log() - two[1]).mean()
    @staticmethod
    def backward(ctx, outer):
        return ctx.saved_tensors[0], None
def vocab_parallel_cross_entropy(logits, targets):
    return Loss.apply(logits, targets)
