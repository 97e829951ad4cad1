# /// shardlab-submission
# lab = "04_zero"
# loses = {Zero1AdamW = 5.0}
# says = {Zero1AdamW = "into the flat buffer that its parameters are views of"}
# ///

# %% nbgrader={"grade_id": "Zero1AdamW", "solution": true}
class Zero1AdamW:
    """parameters equal on all ranks, .grad each rank's own  ->  after step() equal again"""

    def __init__(self, parameters, **options):
        self.parameters, self.world_size = parameters, dist.get_world_size()
        self.flat = flatten(parameters, self.world_size)
        view_into(self.flat, parameters)
        sizes = [parameter.numel() for parameter in parameters]
        start, stop = shard_bounds(sizes, self.world_size)[dist.get_rank()]
        self.own = self.flat[start:stop]
        self.adamw = torch.optim.AdamW([self.own], **options)

    def step(self):
        gradients = flatten([parameter.grad for parameter in self.parameters], self.world_size)
        self.own.grad = reduce_scatter(gradients) / self.world_size
        self.adamw.step()
        self.own.grad = None
