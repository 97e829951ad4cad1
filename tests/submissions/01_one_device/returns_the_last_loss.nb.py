# /// shardlab-submission
# lab = "01_one_device"
# loses = {accumulate = 4.167}
# says = {accumulate = "does not return the mean loss"}
# ///

# %% nbgrader={"grade_id": "accumulate", "solution": true}
def accumulate(model, optimizer, micro_batches):
    counted = sum((targets != -100).sum().item() for _, targets in micro_batches)
    optimizer.zero_grad()
    for tokens, targets in micro_batches:
        logits = model(tokens).flatten(0, 1)
        total = functional.cross_entropy(logits, targets.flatten(), ignore_index=-100, reduction="sum")
        part = total / counted
        part.backward()
    optimizer.step()
    return part.item()
