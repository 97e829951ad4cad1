# /// shardlab-submission
# lab = "01_one_device"
# loses = {accumulate = 0.833}
# says = {accumulate = "keeps more activations than one micro-batch needs"}
# ///
# Only one tensor per micro-batch, but with many micro-batches it adds up.

# %% nbgrader={"grade_id": "accumulate", "solution": true}
def accumulate(model, optimizer, micro_batches):
    counted = sum((targets != -100).sum().item() for _, targets in micro_batches)
    optimizer.zero_grad()
    mean_loss, kept = 0.0, []
    for tokens, targets in micro_batches:
        logits = model(tokens).flatten(0, 1)
        total = functional.cross_entropy(logits, targets.flatten(), ignore_index=-100, reduction="sum")
        kept.append(logits.detach())
        part = total / counted
        part.backward()
        mean_loss += part.item()
    optimizer.step()
    return mean_loss
