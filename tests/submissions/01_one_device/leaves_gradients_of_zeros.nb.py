# /// shardlab-submission
# lab = "01_one_device"
# loses = {accumulate = 5.0}
# says = {accumulate = "leaves gradients of zeros where no micro-batch gives one"}
# ///

# %% nbgrader={"grade_id": "accumulate", "solution": true}
def accumulate(model, optimizer, micro_batches):
    counted = sum((targets != -100).sum().item() for _, targets in micro_batches)
    optimizer.zero_grad(set_to_none=False)
    loss = 0
    for tokens, targets in micro_batches:
        logits = model(tokens).flatten(0, 1)
        part = F.cross_entropy(logits, targets.flatten(), reduction="sum") / counted
        part.backward()
        loss += part.item()
    optimizer.step()
    return loss
