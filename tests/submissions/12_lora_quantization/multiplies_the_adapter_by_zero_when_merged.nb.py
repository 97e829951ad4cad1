# /// shardlab-submission
# lab = "12_lora_quantization"
# loses = {LoRALinear = 4.0}
# says = {LoRALinear = "has wrong values in 'y when merged, with adapters of NaN'"}
# ///

# %% nbgrader={"grade_id": "LoRALinear", "solution": true}
class LoRALinear(nn.Module):
    def __init__(self, linear, r, alpha):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.r, self.alpha = r, alpha
        self.A = nn.Parameter(torch.empty(r, linear.in_features))
        nn.init.kaiming_uniform_(self.A)
        self.B = nn.Parameter(torch.zeros(linear.out_features, r))
        self.saved = None

    def forward(self, x):
        y = self.linear(x)
        on = 1.0 if self.saved is None else 0.0
        y = y + on * self.alpha / self.r * (x @ self.A.T @ self.B.T)
        return y

    @torch.no_grad()
    def merge(self):
        if self.saved is not None:
            return
        self.saved = self.linear.weight.clone()
        self.linear.weight += self.alpha / self.r * self.B @ self.A

    @torch.no_grad()
    def unmerge(self):
        if self.saved is None:
            return
        self.linear.weight.copy_(self.saved)
        self.saved = None
