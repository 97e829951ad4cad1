# /// shardlab-submission
# lab = "05_fsdp"
# loses = {accumulate = 4.0}
# says = {accumulate = "calls barrier, which is not needed"}
# ///

# %% nbgrader={"grade_id": "accumulate", "solution": true}
def accumulate(model, micro_batches, loss_of, save):
    """gradients None  ->  .grad of each shard: the mean over all micro-batches and ranks"""
    saves_bytes = save == "bytes"
    model.set_reshard_after_forward(not saves_bytes)
    for i, micro_batch in enumerate(micro_batches):
        is_last = i == len(micro_batches) - 1
        model.set_requires_gradient_sync(is_last or not saves_bytes)
        model.set_reshard_after_backward(is_last or not saves_bytes)
        loss = loss_of(model, micro_batch) / len(micro_batches)
        loss.backward()
        dist.barrier()
