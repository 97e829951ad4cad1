# /// shardlab-submission
# lab = "07_tensor_parallel"
# loses = {vocab_parallel_cross_entropy = 0.8333}
# says = {vocab_parallel_cross_entropy = "takes no maximum below 0"}
# ///

# %% nbgrader={"grade_id": "vocab_parallel_cross_entropy", "solution": true}
def vocab_parallel_cross_entropy(logits, targets):
    """logits [T, V/N] of this rank's words, targets [T]  ->  mean loss [], equal on all ranks"""
    top = logits.detach().amax(dim=1).clamp(min=0)
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    shifted = logits - top[:, None]
    total = SumOverRanks.apply(shifted.exp().sum(dim=1))
    here = targets - dist.get_rank() * logits.shape[1]
    inside = (here >= 0) & (here < logits.shape[1])
    own = shifted.gather(1, here.clamp(0, logits.shape[1] - 1)[:, None])[:, 0]
    found = SumOverRanks.apply(own * inside)
    return (total.log() - found).mean()
