# /// shardlab-submission
# lab = "01_one_device"
# loses = {accumulate = 5.0}
# says = {accumulate = "runs more forward passes than there are micro-batches"}
# ///

# %% nbgrader={"grade_id": "accumulate", "solution": true}
def accumulate(model, optimizer, micro_batches):
    counted = sum((targets != -100).sum().item() for _, targets in micro_batches)
    optimizer.zero_grad()
    with torch.no_grad():
        loss = sum(F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), reduction="sum").item() for tokens, targets in micro_batches) / counted
    for tokens, targets in micro_batches:
        logits = model(tokens).flatten(0, 1)
        (F.cross_entropy(logits, targets.flatten(), reduction="sum") / counted).backward()
    optimizer.step()
    return loss
