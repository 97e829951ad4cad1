# /// shardlab-submission
# lab = "07_offload"
# loses = {OffloadedAdam = 6.0}
# says = {OffloadedAdam = "should move the gradients to the host"}
# ///
# Swaps, as an operating system does when memory runs short: the values are right.

# %% nbgrader={"grade_id": "OffloadedAdam", "solution": true}
class OffloadedAdam:
    def __init__(self, parameters, pools, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        self.parameters, self.pools, self.steps = list(parameters), pools, 0
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.masters = [pools.to_host(parameter.detach()).float() for parameter in self.parameters]
        self.states = [(torch.zeros_like(m), torch.zeros_like(m)) for m in self.masters]

    def step(self):
        self.steps += 1
        beta1, beta2 = self.betas
        for index, parameter in enumerate(self.parameters):
            master = self.pools.to_device(self.masters[index])
            momentum, variance = (self.pools.to_device(state) for state in self.states[index])
            gradient = parameter.grad.float()
            momentum.mul_(beta1).add_(gradient, alpha=1 - beta1)
            variance.mul_(beta2).add_(gradient * gradient, alpha=1 - beta2)
            slope = momentum / (1 - beta1**self.steps)
            size = (variance / (1 - beta2**self.steps)).sqrt() + self.eps
            master.mul_(1 - self.lr * self.weight_decay).sub_(self.lr * slope / size)
            parameter.data.copy_(master)
            self.masters[index] = self.pools.to_host(master)
            self.states[index] = (self.pools.to_host(momentum), self.pools.to_host(variance))
