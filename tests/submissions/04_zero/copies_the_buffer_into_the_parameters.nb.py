# /// shardlab-submission
# lab = "04_zero"
# loses = {Zero1AdamW = 2.5}
# says = {Zero1AdamW = "no states and no second copy of all parameters"}
# ///

# %% nbgrader={"grade_id": "Zero1AdamW", "solution": true}
class Zero1AdamW:
    """parameters equal on all ranks, .grad each rank's own  ->  after step() equal again"""

    def __init__(self, parameters, **options):
        self.n = dist.get_world_size()
        self.parameters = parameters
        self.flat = flatten(parameters, self.n)
        start, stop = shard_bounds([p.numel() for p in parameters], self.n)[dist.get_rank()]
        self.own = self.flat[start:stop]
        self.optimizer = torch.optim.AdamW([self.own], **options)

    def step(self):
        grads = flatten([p.grad for p in self.parameters], self.n)
        self.own.grad = reduce_scatter(grads) / self.n
        self.optimizer.step()
        self.own.grad = None
        dist.all_gather_single(self.flat, self.own)
        i = 0
        for p in self.parameters:
            p.data.copy_(self.flat[i:i + p.numel()].view_as(p))
            i += p.numel()
