# /// shardlab-submission
# lab = "02_dp_vs_ddp"
# loses = {ddp_step = 5.0}
# says = {ddp_step = "all-reduces single numbers only, such as the loss"}
# ///
# %% nbgrader={"grade_id": "ddp_step", "solution": true}
def ddp_step(model, inputs, targets, lr, step):
    """every rank's own batch  ->  on every rank the same weights after one step"""
    if step == 0:
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.data, src=0)
    model.zero_grad()
    loss = model(inputs, targets)
    dist.all_reduce(loss)
    loss.backward()
    for parameter in model.parameters():
        parameter.data -= lr * parameter.grad
