# /// shardlab-submission
# lab = "07_tensor_parallel"
# loses = {vocab_parallel_cross_entropy = 1.6667}
# says = {vocab_parallel_cross_entropy = "each token needs its own"}
# ///

# %% nbgrader={"grade_id": "vocab_parallel_cross_entropy", "solution": true}
def vocab_parallel_cross_entropy(logits, targets):
    """logits [T, V/N] of this rank's words, targets [T]  ->  mean loss [], equal on all ranks"""
    top = logits.detach().max()
    dist.all_reduce(top, op=dist.ReduceOp.MAX)
    shifted = logits - top
    total = SumOverRanks.apply(shifted.exp().sum(dim=1))
    here = targets - dist.get_rank() * logits.shape[1]
    inside = (here >= 0) & (here < logits.shape[1])
    own = shifted.gather(1, here.clamp(0, logits.shape[1] - 1)[:, None])[:, 0]
    found = SumOverRanks.apply(own * inside)
    return (total.log() - found).mean()
