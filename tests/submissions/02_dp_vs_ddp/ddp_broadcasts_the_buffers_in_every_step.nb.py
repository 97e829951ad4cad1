# /// shardlab-submission
# lab = "02_dp_vs_ddp"
# loses = {ddp_step = 4.0}
# says = {ddp_step = "is over its budget"}
# ///

# %% nbgrader={"grade_id": "ddp_step", "solution": true}
def ddp_step(model, inputs, targets, lr, step):
    """every rank's own batch  ->  on every rank the same weights after one step"""
    for tensor in [*model.parameters(), *model.buffers()] if step == 0 else model.buffers():
        dist.broadcast(tensor.data, src=0)
    model.zero_grad()
    model(inputs, targets).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
        parameter.data -= lr * parameter.grad
