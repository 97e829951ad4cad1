# /// shardlab-submission
# lab = "02_dp_vs_ddp"
# loses = {hub_step = 2.0}
# says = {hub_step = "is over its budget"}
# ///
# Unlike named_parameters, state_dict() contains buffers, and a tied weight under both names.

# %% nbgrader={"grade_id": "hub_step", "solution": true}
def hub_step(model, inputs, targets, lr):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    names = dict(model.named_parameters(remove_duplicate=False))
    for name, tensor in model.state_dict().items():
        if name in names and rank == 0:
            for peer in range(1, world_size):
                dist.send(tensor, peer)
        elif name in names:
            dist.recv(tensor, 0)
    model.zero_grad()
    model(inputs, targets).backward()
    for parameter in model.parameters():
        if rank == 0:
            for peer in range(1, world_size):
                received = torch.empty_like(parameter.grad)
                dist.recv(received, peer)
                parameter.grad += received
            parameter.data -= lr * parameter.grad / world_size
        else:
            dist.send(parameter.grad, 0)
