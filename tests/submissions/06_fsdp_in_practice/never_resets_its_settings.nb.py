# /// shardlab-submission
# lab = "06_fsdp_in_practice"
# loses = {accumulate = 1.0}
# says = {accumulate = "has more units whole at a time"}
# ///

# %% nbgrader={"grade_id": "accumulate", "solution": true}
def accumulate(model, micro_batches, loss_of, save):
    if save == "bytes":
        model.set_reshard_after_forward(False)
        model.set_reshard_after_backward(False)
    for i, micro_batch in enumerate(micro_batches):
        is_last = i == len(micro_batches) - 1
        model.set_requires_gradient_sync(is_last or save == "memory")
        if is_last:
            model.set_reshard_after_backward(True)
        (loss_of(model, micro_batch) / len(micro_batches)).backward()
