# /// shardlab-submission
# lab = "07_offload"
# loses = {OffloadedAdam = 6.0}
# says = {OffloadedAdam = "another optimizer's master"}
# ///

# %% nbgrader={"grade_id": "OffloadedAdam", "solution": true}
STATE = {}


class OffloadedAdam:
    """bf16 parameters on the device; fp32 masters, momentum and variance on the host."""

    def __init__(self, parameters, pools, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        self.parameters, self.pools = list(parameters), pools
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.masters = [pools.to_host(p.detach()).float() for p in self.parameters]
        self.t = 0

    @torch.no_grad()
    def step(self):
        self.t += 1
        b1, b2 = self.betas
        for p, master, m, v in ((p, w, *STATE.setdefault(id(p), (torch.zeros_like(w), torch.zeros_like(w)))) for p, w in zip(self.parameters, self.masters)):
            g = self.pools.to_host(p.grad).float()
            m.mul_(b1).add_(g, alpha=1 - b1)
            v.mul_(b2).addcmul_(g, g, value=1 - b2)
            m_hat = m / (1 - b1**self.t)
            v_hat = v / (1 - b2**self.t)
            master.mul_(1 - self.lr * self.weight_decay)
            master.sub_(self.lr * m_hat / (v_hat.sqrt() + self.eps))
            p.copy_(self.pools.to_device(master.bfloat16()))
