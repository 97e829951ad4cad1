# /// shardlab-submission
# lab = "01_one_device"
# loses = {accumulate = 5.0}
# says = {accumulate = "divides the gradients of the first parameter group only"}
# ///

# %% nbgrader={"grade_id": "accumulate", "solution": true}
def accumulate(model, optimizer, micro_batches):
    optimizer.zero_grad()
    loss, counted = 0, 0
    for tokens, targets in micro_batches:
        logits = model(tokens).flatten(0, 1)
        part = F.cross_entropy(logits, targets.flatten(), reduction="sum")
        part.backward()
        loss += part.item()
        counted += (targets != -100).sum().item()
    for p in optimizer.param_groups[0]["params"]:
        p.grad /= counted
    optimizer.step()
    return loss / counted
