# /// shardlab-submission
# lab = "12_lora_quantization"
# loses = {LoRALinear = 4}
# says = {LoRALinear = "restores the weight that linear had in __init__"}
# ///
# The base may be loaded later; and it is held twice from the start.

# %% nbgrader={"grade_id": "LoRALinear", "solution": true}
class LoRALinear(nn.Module):
    """linear, r, α  ->  linear(x) + α/r · B·A·x, with linear frozen"""

    def __init__(self, linear, r, alpha):
        super().__init__()
        self.linear = linear
        self.linear.requires_grad_(False)
        out_features, in_features = linear.weight.shape
        self.A = nn.Parameter(torch.empty(r, in_features))
        self.B = nn.Parameter(torch.zeros(out_features, r))
        nn.init.kaiming_uniform_(self.A, a=5**0.5)
        self.scaling = alpha / r
        self.merged = False
        self.saved = linear.weight.detach().clone()

    def forward(self, x):
        """x [batch, in]  ->  [batch, out]"""
        y = self.linear(x)
        if not self.merged:
            y = y + (x @ self.A.T) @ self.B.T * self.scaling
        return y

    @torch.no_grad()
    def merge(self):
        """Adds α/r · B·A to linear's weight."""
        if self.merged:
            return
        self.merged = True
        self.linear.weight += self.scaling * (self.B @ self.A)

    @torch.no_grad()
    def unmerge(self):
        """Makes linear's weight what it was before merge()."""
        self.linear.weight.copy_(self.saved)
        self.merged = False
