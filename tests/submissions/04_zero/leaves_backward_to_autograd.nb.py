# /// shardlab-submission
# lab = "04_zero"
# loses = {Zero3Linear = 5.0}
# says = {Zero3Linear = "ends without a gradient"}
# ///

# %% nbgrader={"grade_id": "Zero3Linear", "solution": true}
class Zero3Linear(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.shape = linear.weight.shape
        flat = flatten([linear.weight, linear.bias], dist.get_world_size())
        self.own = nn.Parameter(flat.chunk(dist.get_world_size())[dist.get_rank()].clone())

    def forward(self, x):
        flat, size = gather(self.own), self.shape.numel()
        return F.linear(x, flat[:size].view(self.shape), flat[size : size + self.shape[0]])
