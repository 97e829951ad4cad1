# /// shardlab-submission
# lab = "13_accelerate"
# loses = {metrics = 1.2}
# says = {metrics = "a stream has no length"}
# ///

# %% nbgrader={"grade_id": "metrics", "solution": true}
def metrics(accelerator, model, loader):
    right = samples = 0
    for _, inputs, targets in loader:
        with torch.no_grad():
            hits = accelerator.gather_for_metrics(model(inputs).argmax(dim=1) == targets)
        right, samples = right + hits.sum().item(), samples + len(hits)
    return right / samples
