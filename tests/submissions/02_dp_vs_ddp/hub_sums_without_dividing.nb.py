# /// shardlab-submission
# lab = "02_dp_vs_ddp"
# typed = true
# loses = {hub_step = 5.0}
# says = {hub_step = "the sum of the gradients, not their mean"}
# ///

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
    for parameter in [p for p in model.parameters() if p.requires_grad]:
        if rank == 0:
            for peer in range(1, world_size):
                received = torch.empty_like(parameter.grad)
                dist.recv(received, peer)
                parameter.grad += received
            parameter.data -= lr * parameter.grad
        else:
            dist.send(parameter.grad, 0)
