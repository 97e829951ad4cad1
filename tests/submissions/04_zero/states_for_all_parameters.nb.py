# /// shardlab-submission
# lab = "04_zero"
# loses = {Zero1AdamW = 2.5}
# says = {Zero1AdamW = "as much as Adam's states for all parameters"}
# ///

# %% nbgrader={"grade_id": "Zero1AdamW", "solution": true}
class Zero1AdamW:
    def __init__(self, parameters, **options):
        self.parameters, self.world_size = parameters, dist.get_world_size()
        self.flat = flatten(parameters, self.world_size)
        view_into(self.flat, parameters)
        sizes = [parameter.numel() for parameter in parameters]
        self.start, self.stop = shard_bounds(sizes, self.world_size)[dist.get_rank()]
        self.adamw = torch.optim.AdamW([self.flat], **options)

    def step(self):
        gradients = flatten([parameter.grad for parameter in self.parameters], self.world_size)
        own = reduce_scatter(gradients) / self.world_size
        self.flat.grad = torch.zeros_like(self.flat)
        self.flat.grad[self.start : self.stop] = own
        self.adamw.step()
        self.flat.grad = None
        dist.all_gather_single(self.flat, self.flat[self.start : self.stop])
