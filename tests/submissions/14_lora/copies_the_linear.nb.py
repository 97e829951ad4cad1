# /// shardlab-submission
# lab = "14_lora"
# loses = {LoRALinear = 4.0}
# says = {LoRALinear = "has another module as linear"}
# ///

# %% nbgrader={"grade_id": "LoRALinear", "solution": true}
class LoRALinear(nn.Module):
    def __init__(self, linear, r, alpha):
        super().__init__()
        import copy
        self.linear = copy.deepcopy(linear).requires_grad_(False)
        self.r, self.alpha = r, alpha
        self.A = nn.Parameter(torch.empty(r, linear.in_features))
        nn.init.kaiming_uniform_(self.A)
        self.B = nn.Parameter(torch.zeros(linear.out_features, r))
        self.saved = None

    def forward(self, x):
        y = self.linear(x)
        if self.saved is None:
            y = y + self.alpha / self.r * (x @ self.A.T @ self.B.T)
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
