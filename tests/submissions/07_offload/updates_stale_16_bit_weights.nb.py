# /// shardlab-submission
# lab = "07_offload"
# typed = true
# loses = {OffloadedAdam = 6.0}
# says = {OffloadedAdam = "updates weights that were rounded to 16 bits"}
# ///
# Starts each step from the rounded weights on the device.

# %% nbgrader={"grade_id": "OffloadedAdam", "solution": true}
class OffloadedAdam:
    def __init__(self, parameters, pools, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        self.parameters, self.pools = list(parameters), pools
        self.masters = [pools.to_host(parameter.detach()).float() for parameter in self.parameters]
        self.adam = torch.optim.AdamW(
            self.masters, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay
        )

    def step(self):
        for parameter, master in zip(self.parameters, self.masters):
            master.copy_(self.pools.to_host(parameter.detach()))
            master.grad = self.pools.to_host(parameter.grad).float()
        self.adam.step()
        for parameter, master in zip(self.parameters, self.masters):
            parameter.data.copy_(self.pools.to_device(master.bfloat16()))
