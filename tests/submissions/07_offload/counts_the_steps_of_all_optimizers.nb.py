# /// shardlab-submission
# lab = "07_offload"
# loses = {OffloadedAdam = 6.0}
# says = {OffloadedAdam = "has wrong values in"}
# ///

# %% nbgrader={"grade_id": "OffloadedAdam", "solution": true}
class OffloadedAdam:
    t = 0
    def __init__(self, parameters, pools, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        self.parameters, self.pools = list(parameters), pools
        self.lr,self.betas,self.eps,self.wd=lr,betas,eps,weight_decay
        self.masters = [pools.to_host(parameter.detach()).float() for parameter in self.parameters]
        with pools.host():
            self.m=[torch.zeros_like(x) for x in self.masters]; self.v=[torch.zeros_like(x) for x in self.masters]
    def step(self):
        OffloadedAdam.t += 1; t=OffloadedAdam.t; b1,b2=self.betas
        for p, w, m, v in zip(self.parameters, self.masters, self.m, self.v):
            g = self.pools.to_host(p.grad).float()
            w.mul_(1-self.lr*self.wd); m.mul_(b1).add_(g,alpha=1-b1); v.mul_(b2).addcmul_(g,g,value=1-b2)
            w.addcdiv_(m, (v/(1-b2**t)).sqrt_().add_(self.eps), value=-self.lr/(1-b1**t))
            p.data.copy_(self.pools.to_device(w.bfloat16()))
