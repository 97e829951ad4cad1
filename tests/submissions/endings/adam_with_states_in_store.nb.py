class Zero1AdamW:
    """All states on every rank, and none of them in private pages between steps."""

    def __init__(self, parameters, lr, betas, eps, weight_decay):
        self.parameters, self.steps = parameters, 0
        self.lr, self.betas, self.eps, self.decay = lr, betas, eps, weight_decay
        self.n = sum(parameter.numel() for parameter in parameters)
        STORE.open(8 * self.n)

    def step(self):
        import numpy as np
        self.steps += 1
        world_size, (b1, b2) = dist.get_world_size(), self.betas
        gradients = flatten([parameter.grad for parameter in self.parameters], world_size)
        own = reduce_scatter(gradients) / world_size
        dist.all_gather_single(gradients, own)
        g = gradients[: self.n].numpy()
        m, v = np.frombuffer(STORE.read(), np.float32).copy().reshape(2, -1)
        m += (1 - b1) * (g - m)
        v *= b2
        v += (1 - b2) * g * g
        at = 0
        for parameter in self.parameters:
            part = slice(at, at := at + parameter.numel())
            change = m[part] / (np.sqrt(v[part] / (1 - b2**self.steps)) + self.eps)
            parameter.data.mul_(1 - self.lr * self.decay)
            change = torch.from_numpy(self.lr / (1 - b1**self.steps) * change)
            parameter.data.sub_(change.view_as(parameter).float())
        STORE.write(m.astype(np.float32).tobytes() + v.astype(np.float32).tobytes())

