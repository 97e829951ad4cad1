# /// shardlab-submission
# lab = "01_one_device"
# loses = {accumulate = 4.167}
# says = {accumulate = "steps after every micro-batch"}
# ///
# Right with a single micro-batch.

# %% nbgrader={"grade_id": "accumulate", "solution": true}
def accumulate(model, optimizer, micro_batches):
    counted = sum((targets != -100).sum().item() for _, targets in micro_batches)
    mean_loss = 0.0
    for tokens, targets in micro_batches:
        optimizer.zero_grad()
        logits = model(tokens).flatten(0, 1)
        total = functional.cross_entropy(logits, targets.flatten(), ignore_index=-100, reduction="sum")
        part = total / counted
        part.backward()
        optimizer.step()
        mean_loss += part.item()
    return mean_loss
