# /// shardlab-submission
# lab = "01_one_device"
# loses = {DynamicLossScaler = 5.25}
# says = {DynamicLossScaler = "looks only at the first tensor's gradients"}
# ///

# %% nbgrader={"grade_id": "DynamicLossScaler", "solution": true}
class DynamicLossScaler:

    def __init__(self, scale=2.0**16, growth_interval=2000):
        self.scale = scale
        self.growth_interval = growth_interval
        self.good_steps = 0

    def scale_loss(self, loss):
        """loss []  ->  the loss to call backward on"""
        return loss * self.scale

    def step(self, optimizer):
        """A step with the unscaled gradients, or a skipped one: the same on every rank."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        overflow = torch.zeros(1)
        if gradients and not torch.isfinite(gradients[0]).all():
            overflow += 1
        dist.all_reduce(overflow, op=dist.ReduceOp.MAX)
        if overflow.item():
            self.scale /= 2
            self.good_steps = 0
            return
        for gradient in gradients:
            gradient /= self.scale
        optimizer.step()
        self.good_steps += 1
        if self.good_steps == self.growth_interval:
            self.scale *= 2
            self.good_steps = 0
