# /// shardlab-submission
# lab = "12_lora_quantization"
# loses = {LoRALinear = 0.667}
# says = {LoRALinear = "keeps something of every step"}
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
        self.norms = []
        self.scale = alpha / r
        self.unmerged = None  # a copy of the weight, while it is merged

    def forward(self, x):
        """x [batch, in]  ->  [batch, out]"""
        self.norms.append(x.norm().item())
        y = self.linear(x)
        if self.unmerged is None:
            y = y + self.scale * (x @ self.A.T @ self.B.T)
        return y

    @torch.no_grad()
    def merge(self):
        """Adds α/r · B·A to linear's weight."""
        if self.unmerged is None:
            self.unmerged = self.linear.weight.clone()
            self.linear.weight += self.scale * (self.B @ self.A)

    @torch.no_grad()
    def unmerge(self):
        """Makes linear's weight what it was before merge()."""
        if self.unmerged is not None:
            self.linear.weight.copy_(self.unmerged)
            self.unmerged = None
