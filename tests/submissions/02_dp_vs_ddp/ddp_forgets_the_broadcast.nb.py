# /// shardlab-submission
# lab = "02_dp_vs_ddp"
# loses = {ddp_step = 5.0}
# says = {ddp_step = "does not pass rank 0's weights on at the start"}
# ///

# %% nbgrader={"grade_id": "ddp_step", "solution": true}
def ddp_step(model, inputs, targets, lr, step):
    model.zero_grad()
    model(inputs, targets).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
        parameter.data -= lr * parameter.grad
