# /// shardlab-submission
# lab = "01_one_device"
# loses = {DynamicLossScaler = 3.0}
# says = {DynamicLossScaler = "acts only if half of the ranks or more overflow"}
# ///

# %% nbgrader={"grade_id": "DynamicLossScaler", "solution": true}
class DynamicLossScaler:
    def __init__(self, scale=2.0**16, growth_interval=2000):
        self.scale = scale
        self.growth_interval = growth_interval
        self.good_steps = 0
    def scale_loss(self, loss):
        return loss * self.scale
    def step(self, optimizer):
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        overflow = torch.tensor(float(not all(torch.isfinite(g).all() for g in gradients)))
        dist.all_reduce(overflow)
        if overflow.item() / dist.get_world_size() >= 0.5:
            self.scale /= 2
            self.good_steps = 0
            return
        for g in gradients:
            g /= self.scale
        optimizer.step()
        self.good_steps += 1
        if self.good_steps == self.growth_interval:
            self.scale *= 2
            self.good_steps = 0
