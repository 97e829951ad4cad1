# /// shardlab-submission
# lab = "01_one_device"
# loses = {accumulate = 1.667}
# says = {accumulate = "returns nan, from 0/0, where no target of a micro-batch counts"}
# ///
# Right except for a micro-batch in which no target counts: its mean is nan, and so is nan times 0.

# %% nbgrader={"grade_id": "accumulate", "solution": true}
def accumulate(model, optimizer, micro_batches):
    counted = sum((targets != -100).sum().item() for _, targets in micro_batches)
    optimizer.zero_grad()
    mean_loss = 0.0
    for tokens, targets in micro_batches:
        part = model(tokens, targets) * (targets != -100).sum() / counted
        part.backward()
        mean_loss += part.item()
    optimizer.step()
    return mean_loss
