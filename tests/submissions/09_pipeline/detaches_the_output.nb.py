# /// shardlab-submission
# lab = "09_pipeline"
# loses = {naive_step = 3.0}
# says = {naive_step = "detach"}
# ///

# %% nbgrader={"grade_id": "naive_step", "solution": true}
def naive_step(stage, x, target, shape):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    if rank > 0:
        x = torch.empty(shape)
        dist.recv(x, rank - 1)
        x.requires_grad_()
    y = stage(x).detach().requires_grad_()
    loss = None
    if rank < last:
        dist.send(y.detach(), rank + 1)
        y_grad = torch.empty(shape)
        dist.recv(y_grad, rank + 1)
        y.backward(y_grad)
    else:
        loss = F.mse_loss(y, target)
        loss.backward()
    if rank > 0:
        dist.send(x.grad, rank - 1)
    return loss
