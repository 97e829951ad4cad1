# /// shardlab-submission
# lab = "07_offload"
# loses = {OffloadedAdam = 6.0}
# says = {OffloadedAdam = "another optimizer's master"}
# ///

# %% nbgrader={"grade_id": "OffloadedAdam", "solution": true}
class OffloadedAdam:
    state = {}

    """bf16 parameters on the device; fp32 masters, momentum and variance on the host."""

    def __init__(self, parameters, pools, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        self.parameters = list(parameters)
        self.pools = pools
        self.masters = [pools.to_host(p.detach()).float() for p in self.parameters]
        self.options = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        for i, m in enumerate(self.masters): self.state[i] = torch.optim.AdamW([m], **self.options)

    def step(self):
        for master, p in zip(self.masters, self.parameters):
            master.grad = self.pools.to_host(p.grad).float()
        for i, m in enumerate(self.masters):
            self.state[i].step(); m.grad = None
        for master, p in zip(self.masters, self.parameters):
            p.data.copy_(self.pools.to_device(master.bfloat16()))
