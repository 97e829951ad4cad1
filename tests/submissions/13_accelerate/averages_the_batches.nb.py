# /// shardlab-submission
# lab = "13_accelerate"
# loses = {metrics = 2.4}
# says = {metrics = "averages the accuracies of batches"}
# ///

# %% nbgrader={"grade_id": "metrics", "solution": true}
def metrics(accelerator, model, loader):
    accuracies = []
    for _, inputs, targets in loader:
        with torch.no_grad():
            hits = model(inputs).argmax(dim=1) == targets
        accuracies.append(accelerator.gather_for_metrics(hits).float().mean())
    return torch.stack(accuracies).mean().item()
