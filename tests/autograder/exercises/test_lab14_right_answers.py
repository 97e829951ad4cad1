"""Lab 14: right answers that differ from the solution earn full marks."""

from __future__ import annotations

import cloudpickle
import pytest

from autograder import exercises
from autograder.evaluation.decide import decide
from tests.submissions import planted

pytestmark = pytest.mark.ranks

LAB = "14_lora"
SEED = 11
RIGHT = {
    ("LoRALinear", "keeps the original weight in a list"): """
class LoRALinear(nn.Module):
    def __init__(self, linear, r, alpha):
        super().__init__()
        for parameter in linear.parameters():
            parameter.requires_grad = False
        self.linear, self.alpha, self.kept = linear, alpha, []
        self.A = nn.Parameter(torch.randn(r, linear.weight.shape[1]) * 0.02)
        self.B = nn.Parameter(self.A.new_zeros(linear.weight.shape[0], r))

    def forward(self, x):
        if self.kept:
            return self.linear(x)
        low_rank = F.linear(F.linear(x, self.A), self.B)
        return self.linear(x) + low_rank * self.alpha / len(self.A)

    def merge(self):
        if not self.kept:
            self.kept.append(self.linear.weight.data)
            change = self.B.detach() @ self.A.detach()
            self.linear.weight.data = self.kept[0] + change * (self.alpha / len(self.A))

    def unmerge(self):
        while self.kept:
            self.linear.weight.data = self.kept.pop()
""",
    ("LoRALinear", "adds B·A to the weight in forward"): """
class LoRALinear(nn.Module):
    def __init__(self, linear, r, alpha):
        super().__init__()
        self.linear = linear
        linear.weight.requires_grad_(False)
        if linear.bias is not None:
            linear.bias.requires_grad_(False)
        out_features, in_features = linear.weight.shape
        self.A = nn.Parameter(torch.rand(r, in_features))
        self.B = nn.Parameter(torch.zeros(out_features, r))
        self.scale, self.is_merged = alpha / r, False

    def whole(self):
        return self.linear.weight + self.scale * self.B @ self.A

    def forward(self, x):
        return F.linear(
            x, self.linear.weight if self.is_merged else self.whole(), self.linear.bias)

    def merge(self):
        if self.is_merged:
            return
        self.before = self.linear.weight.detach().clone().numpy()
        self.linear.weight.data.copy_(self.whole().detach())
        self.is_merged = True

    def unmerge(self):
        if self.is_merged:
            with torch.no_grad():
                self.linear.weight[:] = torch.from_numpy(self.before)
        self.is_merged = False
""",
    ("count_and_ship", "element by element"): """
def count_and_ship(shapes, r, targets, world_size, tokens):
    from collections import Counter
    found = Counter()
    for name, shape in shapes.items():
        *_, module, kind = name.split(".")
        if len(shape) == 2:
            found["adapters"] += r * sum(shape) if module in set(targets) else 0
            found["frozen"] += 0 if module in ("token", "position") else shape[0] * shape[1]
    gradient_bytes = found["adapters"] * torch.float32.itemsize
    return dict(
        flops=tokens * sum(6 * n if name == "adapters" else 4 * n for name, n in found.items()),
        sent_bytes=2 * gradient_bytes - 2 * gradient_bytes / world_size,
        state_bytes=3 * gradient_bytes,
        adapters=found["adapters"],
    )
""",
    ("qlora_step", "recomputes with checkpoint, and sends one flat tensor"): """
def qlora_step(layers, x, loss_of, alpha, lr):
    from torch.utils.checkpoint import checkpoint

    def run(layer, x):
        A, B = layer["A"], layer["B"]
        W = dequantize_nf4(layer["packed"], layer["absmax"], (B.shape[0], A.shape[1]))
        return F.linear(x, W) + alpha / A.shape[0] * ((x @ A.T) @ B.T)

    for layer in layers:
        x = checkpoint(run, layer, x, use_reentrant=False)
    adapters = [layer[name] for name in "BA" for layer in layers]
    for each in adapters:
        each.grad = None
    loss_of(x).backward()
    flat = torch.cat([each.grad.flatten() for each in adapters]) / dist.get_world_size()
    dist.all_reduce(flat)
    with torch.no_grad():
        for each, mean in zip(adapters, flat.split([each.numel() for each in adapters])):
            each.add_(mean.view_as(each), alpha=-lr)
""",
    ("qlora_step", "writes backward by hand"): """
def qlora_step(layers, x, loss_of, alpha, lr):
    def weight(layer):
        shape = len(layer["B"]), layer["A"].shape[1]
        return dequantize_nf4(layer["packed"], layer["absmax"], shape)

    inputs = []
    with torch.no_grad():
        for layer in layers:
            inputs.append(x)
            scale = alpha / len(layer["A"])
            x = x @ weight(layer).T + scale * (x @ layer["A"].T @ layer["B"].T)
    y = x.requires_grad_()
    y_grad, = torch.autograd.grad(loss_of(y), y)
    works, updates = [], []
    with torch.no_grad():
        for layer, x in zip(reversed(layers), reversed(inputs)):
            A, B = layer["A"], layer["B"]
            scale = alpha / len(A)
            into_b = y_grad @ B
            for adapter, grad in ((A, into_b.T @ x), (B, y_grad.T @ (x @ A.T))):
                updates.append((adapter, grad.mul_(scale / dist.get_world_size())))
                works.append(dist.all_reduce(grad, async_op=True))
            y_grad = y_grad @ weight(layer) + scale * into_b @ A
        for work, (adapter, grad) in zip(works, updates):
            work.wait()
            adapter -= lr * grad
""",
}


@pytest.mark.parametrize(("answer", "way"), RIGHT)
def test_right_answers_pass(answer: str, way: str) -> None:
    (exercise,) = (each for each in exercises.of_lab(LAB) if each.answer == answer)
    answers = planted.solution(LAB) | {answer: RIGHT[answer, way]}
    verdict = decide(exercise, cloudpickle.dumps(planted.subjects(LAB, answers)[answer]), SEED)
    assert verdict.passed, [case.diagnosis for case in verdict.cases if not case.passed]
