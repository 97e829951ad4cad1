# /// shardlab-submission
# lab = "01_one_device"
# loses = {accumulate = 5.0}
# says = {accumulate = "divides by the number of micro-batches only"}
# ///

# %% nbgrader={"grade_id": "accumulate", "solution": true}
def accumulate(model, optimizer, micro_batches):
    optimizer.zero_grad()
    mean_loss = 0.0
    for tokens, targets in micro_batches:
        logits = model(tokens).flatten(0, 1)
        total = functional.cross_entropy(logits, targets.flatten(), ignore_index=-100, reduction="sum")
        part = total / len(micro_batches)
        part.backward()
        mean_loss += part.item()
    optimizer.step()
    return mean_loss
