# /// shardlab-submission
# lab = "02_dp_vs_ddp"
# loses = {ddp_step = 5.0}
# says = {ddp_step = "takes the right step, but .grad is still that of its own batch"}
# ///
# With plain SGD the weights come out right; with Adam they would not.

# %% nbgrader={"grade_id": "ddp_step", "solution": true}
def ddp_step(model, inputs, targets, lr, step):
    if step == 0:
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.data, src=0)
    model.zero_grad()
    model(inputs, targets).backward()
    for parameter in model.parameters():
        parameter.data -= lr * parameter.grad
        dist.all_reduce(parameter.data)
        parameter.data /= dist.get_world_size()
