# /// shardlab-submission
# lab = "05_fsdp"
# loses = {accumulate = 4.0}
# says = {accumulate = "changes the list of micro-batches"}
# ///

# %% nbgrader={"grade_id": "accumulate", "solution": true}
def accumulate(model, micro_batches, loss_of, save):
    """gradients None  ->  .grad of each shard: the mean over all micro-batches and ranks"""
    saves_bytes = save == "bytes"
    model.set_reshard_after_forward(not saves_bytes)
    count = len(micro_batches)
    while micro_batches:
        micro_batch = micro_batches.pop(0)
        is_last = not micro_batches
        model.set_requires_gradient_sync(is_last or not saves_bytes)
        model.set_reshard_after_backward(is_last or not saves_bytes)
        loss = loss_of(model, micro_batch) / count
        loss.backward()
