# /// shardlab-submission
# lab = "01_one_device"
# loses = {accumulate = 5.0}
# says = {accumulate = "runs more forward passes than there are micro-batches"}
# ///

# %% nbgrader={"grade_id": "accumulate", "solution": true}
def accumulate(model, optimizer, micro_batches):
    """One optimizer step from all micro-batches together  ->  their mean loss"""
    counted = sum((targets != -100).sum().item() for _, targets in micro_batches)
    optimizer.zero_grad()
    mean_loss = 0.0
    chunks = [[each.chunk(2) for each in batch] for batch in micro_batches]
    halves = [half for batch in chunks for half in zip(*batch, strict=True)]
    for tokens, targets in halves:
        logits = model(tokens).flatten(0, 1)
        total = functional.cross_entropy(logits, targets.flatten(), ignore_index=-100, reduction="sum")
        part = total / counted
        part.backward()
        mean_loss += part.item()
    optimizer.step()
    return mean_loss
