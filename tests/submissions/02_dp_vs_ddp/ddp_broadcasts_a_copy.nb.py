# /// shardlab-submission
# lab = "02_dp_vs_ddp"
# loses = {ddp_step = 5.0}
# says = {ddp_step = "does not pass rank 0's weights on at the start"}
# ///

# %% nbgrader={"grade_id": "ddp_step", "solution": true}
def ddp_step(model, inputs, targets, lr, step):
    n = dist.get_world_size()
    if step == 0:
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.data.clone(), src=0)
    model.zero_grad()
    model(inputs, targets).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= n
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= lr * parameter.grad
