# /// shardlab-submission
# lab = "02_dp_vs_ddp"
# loses = {hub_step = 5.0}
# says = {hub_step = "call send first and wait for each other to receive"}
# ///
# The others compute with their own weights, send, and only then receive weights.

# %% nbgrader={"grade_id": "hub_step", "solution": true}
def hub_step(model, inputs, targets, lr):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model.zero_grad()
    model(inputs, targets).backward()
    for parameter in model.parameters():
        if rank == 0:
            for peer in range(1, world_size):
                dist.send(parameter.data, peer)
                received = torch.empty_like(parameter.grad)
                dist.recv(received, peer)
                parameter.grad += received
            parameter.data -= lr * parameter.grad / world_size
        else:
            dist.send(parameter.grad, 0)
            dist.recv(parameter.data, 0)
