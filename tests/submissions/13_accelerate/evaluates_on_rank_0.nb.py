# /// shardlab-submission
# lab = "13_accelerate"
# loses = {metrics = 3.0}
# says = {metrics = "call"}
# ///

# %% nbgrader={"grade_id": "metrics", "solution": true}
def metrics(accelerator, model, loader):
    accuracy = 0.0
    if accelerator.is_main_process:
        right = samples = 0
        for _, inputs, targets in loader:
            hits = accelerator.gather_for_metrics(model(inputs).argmax(dim=1) == targets)
            right, samples = right + hits.sum().item(), samples + len(hits)
        accuracy = right / samples
    accelerator.wait_for_everyone()
    return accuracy
