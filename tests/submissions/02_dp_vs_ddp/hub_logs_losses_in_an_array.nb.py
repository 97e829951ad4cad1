# /// shardlab-submission
# lab = "02_dp_vs_ddp"
# loses = {hub_step = 1.0}
# says = {hub_step = "keeps something of every step"}
# ///

# %% nbgrader={"grade_id": "hub_step", "solution": true}
def hub_step(model, inputs, targets, lr):
    rank, n = dist.get_rank(), dist.get_world_size()
    for parameter in model.parameters():
        if rank == 0:
            for peer in range(1, n):
                dist.send(parameter.data, peer)
        else:
            dist.recv(parameter.data, 0)
    model.zero_grad()
    import numpy as np
    loss = model(inputs, targets)
    loss.backward()
    model.losses = np.append(getattr(model, 'losses', []), loss.item())
    for parameter in [p for p in model.parameters() if p.requires_grad]:
        if rank == 0:
            for peer in range(1, n):
                got = torch.empty_like(parameter.grad)
                dist.recv(got, peer)
                parameter.grad += got
        else:
            dist.send(parameter.grad, 0)
    if rank == 0:
        with torch.no_grad():
            for parameter in [p for p in model.parameters() if p.requires_grad]:
                parameter -= lr * parameter.grad / n
