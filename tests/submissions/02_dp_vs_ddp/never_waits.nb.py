# /// shardlab-submission
# lab = "02_dp_vs_ddp"
# loses = {hub_step = 5.0, ddp_step = 5.0, BucketedDDP = 10.0}
# says = {hub_step = "starts a send with isend and never waits for it", ddp_step = "starts all_reduce with async_op=True and never waits for it", BucketedDDP = "starts all_reduce with async_op=True and never waits for it"}
# ///
# %% nbgrader={"grade_id": "hub_step", "solution": true}
def hub_step(model, inputs, targets, lr):
    """rank 0's weights, every rank's batch  ->  rank 0's weights after one step"""
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
            parameter.data -= lr * parameter.grad / world_size
        else:
            dist.isend(parameter.grad, 0)

# %% nbgrader={"grade_id": "ddp_step", "solution": true}
def ddp_step(model, inputs, targets, lr, step):
    """every rank's own batch  ->  on every rank the same weights after one step"""
    if step == 0:
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.data, src=0)
    model.zero_grad()
    model(inputs, targets).backward()
    for parameter in [p for p in model.parameters() if p.requires_grad]:
        dist.all_reduce(parameter.grad, async_op=True)
        parameter.grad /= dist.get_world_size()
        parameter.data -= lr * parameter.grad

# %% nbgrader={"grade_id": "BucketedDDP", "solution": true}
class BucketedDDP(torch.nn.Module):
    """Averages gradients over all ranks, bucket by bucket, while backward still runs."""

    def forward(self, *batch):
        return self.module(*batch)

    def __init__(self, module, cap_bytes):
        super().__init__()
        self.module = module
        self.buckets, size = [], 0
        for parameter in reversed([p for p in module.parameters() if p.requires_grad]):
            if not self.buckets or size + parameter.nbytes > cap_bytes:
                self.buckets.append([])
                size = 0
            self.buckets[-1].append(parameter)
            size += parameter.nbytes
        for index, bucket in enumerate(self.buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(partial(self.arrived, index))
        self.reset()

    def reset(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.in_flight = []

    def arrived(self, index, parameter):
        self.missing[index] -= 1
        if self.missing[index] == 0:
            flat = torch.cat([p.grad.flatten() for p in self.buckets[index]])
            work = dist.all_reduce(flat, async_op=True)
            self.in_flight.append((self.buckets[index], flat, work))

    def finish(self):
        """Call it after backward: then every trainable parameter's .grad is the mean."""
        for bucket, flat, work in self.in_flight:
            flat /= dist.get_world_size()
            parts = flat.split([parameter.numel() for parameter in bucket])
            for parameter, part in zip(bucket, parts, strict=True):
                parameter.grad.copy_(part.view_as(parameter))
        self.reset()
