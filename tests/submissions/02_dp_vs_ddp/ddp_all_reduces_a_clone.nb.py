# /// shardlab-submission
# lab = "02_dp_vs_ddp"
# loses = {ddp_step = 5.0}
# says = {ddp_step = "takes the right step, but .grad is still that of its own batch"}
# ///
# %% nbgrader={"grade_id": "ddp_step", "solution": true}
def ddp_step(model, inputs, targets, lr, step):
    if step == 0:
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.data, src=0)
    model.zero_grad()
    model(inputs, targets).backward()
    for parameter in model.parameters():
        mean = parameter.grad.clone()
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        parameter.data -= lr * mean
