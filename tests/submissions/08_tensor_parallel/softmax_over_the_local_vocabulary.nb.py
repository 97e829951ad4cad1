# /// shardlab-submission
# lab = "08_tensor_parallel"
# loses = {vocab_parallel_cross_entropy = 5.0}
# says = {vocab_parallel_cross_entropy = "takes the softmax over its own part"}
# ///

# %% nbgrader={"grade_id": "vocab_parallel_cross_entropy", "solution": true}
def vocab_parallel_cross_entropy(logits, targets):
    """logits [T, V/N] of this rank's words, targets [T]  ->  mean loss [], equal on all ranks"""
    shifted = logits.log_softmax(dim=1)
    total = torch.ones(len(logits))
    here = targets - dist.get_rank() * logits.shape[1]
    inside = (here >= 0) & (here < logits.shape[1])
    own = logits.gather(1, here.clamp(0, logits.shape[1] - 1)[:, None])[:, 0]
    found = SumOverRanks.apply(own * inside)
    return (logits.logsumexp(dim=1) + total.log() - found).mean()
