# /// shardlab-submission
# lab = "13_accelerate"
# loses = {metrics = 3.0}
# says = {metrics = "evaluates samples of other ranks"}
# ///

# %% nbgrader={"grade_id": "metrics", "solution": true}
def metrics(accelerator, model, loader):
    right = samples = 0
    dataset = getattr(loader.dataset, "dataset", loader.dataset)  # of a stream: cut for this rank
    for _, inputs, target in dataset:
        with torch.no_grad():
            right += (model(inputs[None]).argmax(dim=1) == target).sum().item()
        samples += 1
    return right / samples
