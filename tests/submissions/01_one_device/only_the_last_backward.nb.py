# /// shardlab-submission
# lab = "01_one_device"
# loses = {accumulate = 4.167}
# says = {accumulate = "steps with the last micro-batch's gradients only"}
# ///

# %% nbgrader={"grade_id": "accumulate", "solution": true}
def accumulate(model, optimizer, micro_batches):
    counted = sum((targets != -100).sum().item() for _, targets in micro_batches)
    optimizer.zero_grad()
    loss = 0.0
    for tokens, targets in micro_batches:
        logits = model(tokens).flatten(0, 1)
        total = functional.cross_entropy(logits, targets.flatten(), ignore_index=-100, reduction="sum")
        loss = total / counted
    loss.backward()
    optimizer.step()
    return loss.item()
