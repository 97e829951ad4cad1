# /// shardlab-submission
# lab = "02_dp_vs_ddp"
# loses = {hub_step = 4.0}
# says = {hub_step = "sends to ranks other than the hub"}
# ///
# With two ranks there is no difference, so one case passes.

# %% nbgrader={"grade_id": "hub_step", "solution": true}
def hub_step(model, inputs, targets, lr):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for parameter in model.parameters():
        if rank == 0:
            for peer in range(1, world_size):
                dist.send(parameter.data, peer)
        else:
            dist.recv(parameter.data, 0)
    model.zero_grad()
    model(inputs, targets).backward()
    for parameter in model.parameters():
        if rank < world_size - 1:
            received = torch.empty_like(parameter.grad)
            dist.recv(received, rank + 1)
            parameter.grad += received
        if rank > 0:
            dist.send(parameter.grad, rank - 1)
        else:
            parameter.data -= lr * parameter.grad / world_size
