# /// shardlab-submission
# lab = "13_accelerate"
# loses = {metrics = 2.4}
# says = {metrics = "counts samples that the loader repeated to fill the last batch: gather returns"}
# ///

# %% nbgrader={"grade_id": "metrics", "solution": true}
def metrics(accelerator, model, loader):
    right = samples = 0
    for _, inputs, targets in loader:
        with torch.no_grad():
            hits = accelerator.gather(model(inputs).argmax(dim=1) == targets)
        right, samples = right + hits.sum().item(), samples + len(hits)
    return right / samples
