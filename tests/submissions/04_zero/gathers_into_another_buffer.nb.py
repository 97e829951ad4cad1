# /// shardlab-submission
# lab = "04_zero"
# loses = {Zero1AdamW = 5.0}
# says = {Zero1AdamW = "into the flat buffer that its parameters are views of"}
# ///

# %% nbgrader={"grade_id": "Zero1AdamW", "solution": true}
class Zero1AdamW:
    """parameters equal on all ranks, .grad each rank's own  ->  after step() equal again"""

    def __init__(self, parameters, **options):
        self.n = dist.get_world_size()
        self.parameters = parameters
        self.flat = flatten(parameters, self.n)
        view_into(self.flat, parameters)
        start, stop = shard_bounds([p.numel() for p in parameters], self.n)[dist.get_rank()]
        self.own = self.flat[start:stop]
        self.optimizer = torch.optim.AdamW([self.own], **options)

    def step(self):
        grads = flatten([p.grad for p in self.parameters], self.n)
        self.own.grad = reduce_scatter(grads) / self.n
        self.optimizer.step()
        self.own.grad = None
        self.flat = gather(self.own)
