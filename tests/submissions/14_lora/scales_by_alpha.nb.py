# /// shardlab-submission
# lab = "14_lora"
# typed = true
# loses = {LoRALinear = 4.0}
# says = {LoRALinear = "by another factor than α/r"}
# ///

# %% nbgrader={"grade_id": "LoRALinear", "solution": true}
class LoRALinear(nn.Module):
    """linear, r, α  ->  linear(x) + α/r · B·A·x, with linear frozen"""

    def __init__(self, linear, r, alpha):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.A = nn.Parameter(torch.empty(r, linear.in_features))
        self.B = nn.Parameter(torch.zeros(linear.out_features, r))
        nn.init.kaiming_uniform_(self.A)
        self.scale = alpha
        self.unmerged = None  # a copy of the weight, while it is merged

    def forward(self, x):
        y = self.linear(x)
        if self.unmerged is None:
            y = y + self.scale * (x @ self.A.T @ self.B.T)
        return y

    @torch.no_grad()
    def merge(self):
        if self.unmerged is None:
            self.unmerged = self.linear.weight.clone()
            self.linear.weight += self.scale * (self.B @ self.A)

    @torch.no_grad()
    def unmerge(self):
        if self.unmerged is not None:
            self.linear.weight.copy_(self.unmerged)
            self.unmerged = None
