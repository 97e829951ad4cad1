# /// shardlab-submission
# lab = "06_fsdp_in_practice"
# loses = {accumulate = 2.5}
# says = {accumulate = "exchanges a unit more than once in a step that should save bytes"}
# ///

# %% nbgrader={"grade_id": "accumulate", "solution": true}
def accumulate(model, micro_batches, loss_of, save):
    model.set_reshard_after_forward(save == "memory")
    for micro_batch in micro_batches:
        (loss_of(model, micro_batch) / len(micro_batches)).backward()
