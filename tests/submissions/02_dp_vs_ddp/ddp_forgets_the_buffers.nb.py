# /// shardlab-submission
# lab = "02_dp_vs_ddp"
# loses = {ddp_step = 4.0}
# says = {ddp_step = "forgets the buffers"}
# ///
# A GPT has no buffers, so one case passes.

# %% nbgrader={"grade_id": "ddp_step", "solution": true}
def ddp_step(model, inputs, targets, lr, step):
    if step == 0:
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=0)
    model.zero_grad()
    model(inputs, targets).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
        parameter.data -= lr * parameter.grad
