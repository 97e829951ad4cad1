# /// shardlab-submission
# lab = "11_deepspeed_accelerate"
# loses = {token_mean = 3.0}
# says = {token_mean = "should return the loss, one number"}
# ///

# %% nbgrader={"grade_id": "token_mean", "solution": true}
def token_mean(accelerator, model, micro_batches):
    """.grad and the loss: the mean over all tokens of all ranks and micro-batches"""
    ### BEGIN SOLUTION
    own_tokens = sum((labels != -100).sum() for _, labels in micro_batches)
    tokens = accelerator.reduce(own_tokens)
    divided_later = accelerator.num_processes * accelerator.gradient_accumulation_steps
    total = torch.zeros(())
    for ids, labels in micro_batches:
        with accelerator.accumulate(model):
            logits = model(ids).flatten(0, 1)
            loss = cross_entropy(logits, labels.flatten(), reduction="sum")
            accelerator.backward(loss * divided_later / tokens)
        total += loss.detach()
    return accelerator.gather(total) / tokens
    ### END SOLUTION
