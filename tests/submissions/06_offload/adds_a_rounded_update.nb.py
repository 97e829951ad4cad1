# /// shardlab-submission
# lab = "06_offload"
# loses = {OffloadedAdam = 6.0}
# says = {OffloadedAdam = "differ from its masters rounded to bf16"}
# ///

# %% nbgrader={"grade_id": "OffloadedAdam", "solution": true}
class OffloadedAdam:
    """bf16 parameters on the device; fp32 masters, momentum and variance on the host."""

    def __init__(self, parameters, pools, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        self.parameters, self.pools = list(parameters), pools
        self.masters = [pools.to_host(parameter.detach()).float() for parameter in self.parameters]
        self.adam = torch.optim.AdamW(
            self.masters, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay
        )

    def step(self):
        for parameter, master in zip(self.parameters, self.masters):
            master.grad = self.pools.to_host(parameter.grad).float()
        before = [master.detach().clone() for master in self.masters]
        self.adam.step()
        self.adam.zero_grad()
        for parameter, master, old in zip(self.parameters, self.masters, before):
            parameter.data.add_(self.pools.to_device((master.detach() - old).bfloat16()))
