# /// shardlab-submission
# lab = "09_pipeline"
# loses = {naive_step = 2.25}
# says = {naive_step = "sends back the gradient it received"}
# ///

# %% nbgrader={"grade_id": "naive_step", "solution": true}
def naive_step(stage, x, target, shape):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    if rank > 0:
        x = torch.empty(shape)
        dist.recv(x, rank - 1)
        x.requires_grad_()
    y = stage(x)
    if rank < last:
        dist.send(y.detach(), rank + 1)
        y_grad = torch.empty(shape)
        dist.recv(y_grad, rank + 1)
        y.backward(y_grad)
    else:
        loss = F.mse_loss(y, target)
        y_grad = torch.autograd.grad(loss, y, retain_graph=True)[0]
        loss.backward()
    if rank > 0:
        dist.send(y_grad, rank - 1)
    return loss.detach() if rank == last else None
