# /// shardlab-submission
# lab = "07_offload"
# loses = {OffloadedAdam = 6.0}
# says = {OffloadedAdam = "writes into the gradients on the device"}
# ///

# %% nbgrader={"grade_id": "OffloadedAdam", "solution": true}
class OffloadedAdam:
    """bf16 parameters on the device; fp32 masters, momentum and variance on the host."""

    def __init__(self, parameters, pools, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        self.parameters = list(parameters)
        self.pools = pools
        self.masters = [pools.to_host(p.detach()).float() for p in self.parameters]
        self.adam = torch.optim.AdamW(self.masters, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def step(self):
        for master, p in zip(self.masters, self.parameters):
            p.grad.div_(4); master.grad = self.pools.to_host(p.grad).float().mul_(4); p.grad = None
        self.adam.step()
        self.adam.zero_grad()
        for master, p in zip(self.masters, self.parameters):
            p.data.copy_(self.pools.to_device(master.bfloat16()))
