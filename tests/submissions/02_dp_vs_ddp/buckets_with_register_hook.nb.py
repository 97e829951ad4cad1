# /// shardlab-submission
# lab = "02_dp_vs_ddp"
# loses = {BucketedDDP = 10.0}
# says = {BucketedDDP = "a hook of register_hook, which runs before"}
# ///
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
                parameter.register_hook(partial(self.arrived, index))
        self.reset()

    def reset(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.in_flight = []

    def arrived(self, index, gradient):
        self.missing[index] -= 1
        if self.missing[index] == 0:
            flat = torch.cat([p.grad.flatten() for p in self.buckets[index]])
            work = dist.all_reduce(flat, async_op=True)
            self.in_flight.append((self.buckets[index], flat, work))

    def finish(self):
        """Call it after backward: then every trainable parameter's .grad is the mean."""
        for bucket, flat, work in self.in_flight:
            work.wait()
            flat /= dist.get_world_size()
            parts = flat.split([parameter.numel() for parameter in bucket])
            for parameter, part in zip(bucket, parts, strict=True):
                parameter.grad.copy_(part.view_as(parameter))
        self.reset()
