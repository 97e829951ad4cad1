# /// shardlab-submission
# lab = "04_zero"
# loses = {Zero1AdamW = 2.5}
# says = {Zero1AdamW = "no states and no second copy of all parameters"}
# ///

# %% nbgrader={"grade_id": "Zero1AdamW", "solution": true}
class Zero1AdamW:
    def __init__(self, parameters, **options):
        self.parameters = parameters
        self.n, self.rank = dist.get_world_size(), dist.get_rank()
        self.before = [parameter.data for parameter in parameters]
        self.flat = flatten(parameters, self.n)
        view_into(self.flat, parameters)
        start, stop = shard_bounds([p.numel() for p in parameters], self.n)[self.rank]
        self.own = self.flat[start:stop]
        self.optimizer = torch.optim.AdamW([self.own], **options)

    def step(self):
        grads = flatten([p.grad for p in self.parameters], self.n)
        self.own.grad = reduce_scatter(grads) / self.n
        self.optimizer.step()
        self.own.grad = None
        dist.all_gather_single(self.flat, self.own)
