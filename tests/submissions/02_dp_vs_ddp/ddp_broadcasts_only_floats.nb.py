# /// shardlab-submission
# lab = "02_dp_vs_ddp"
# loses = {ddp_step = 4.0}
# says = {ddp_step = "leaves out the buffer of integers at the start"}
# ///
# A GPT has no integer buffers, so one case passes.

# %% nbgrader={"grade_id": "ddp_step", "solution": true}
def ddp_step(model, inputs, targets, lr, step):
    if step == 0:
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point():
                dist.broadcast(tensor.data, src=0)
    model.zero_grad()
    model(inputs, targets).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
        parameter.data -= lr * parameter.grad
