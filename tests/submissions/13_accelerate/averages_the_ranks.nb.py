# /// shardlab-submission
# lab = "13_accelerate"
# loses = {metrics = 2.4}
# says = {metrics = "means over the ranks contain them"}
# ///

# %% nbgrader={"grade_id": "metrics", "solution": true}
def metrics(accelerator, model, loader):
    right = samples = 0
    for _, inputs, targets in loader:
        with torch.no_grad():
            hits = model(inputs).argmax(dim=1) == targets
        right, samples = right + hits.sum(), samples + len(hits)
    return accelerator.reduce(right / samples, reduction="mean").item()
