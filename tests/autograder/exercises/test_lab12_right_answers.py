"""Lab 12: right answers that differ from the solution earn full marks."""

from __future__ import annotations

import cloudpickle
import pytest

from autograder import exercises
from autograder.evaluation.decide import decide
from tests.submissions import planted

pytestmark = pytest.mark.ranks

LAB = "12_lora_quantization"
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
    ("quantize_blockwise", "boundaries halfway between the points"): """
def quantize_blockwise(weights, block, points=None):
    codes, scales = [], []
    for part in weights.flatten().split(block):
        absmax = part.abs().max()
        scales.append(absmax)
        scaled = part / absmax if absmax else part
        if points is None:
            codes.append(torch.round(part * (127 / absmax) if absmax else part).to(torch.int8))
        else:
            boundaries = (points[1:] + points[:-1]) / 2
            codes.append(torch.bucketize(scaled, boundaries).to(torch.uint8))
    return torch.cat(codes).reshape_as(weights), torch.stack(scales)
""",
    ("quantize_blockwise", "a minimum divisor, and rounding by hand"): """
def quantize_blockwise(weights, block, points=None):
    n = weights.numel()
    rows = torch.zeros(-(-n // block), block)
    rows.view(-1)[:n] = weights.reshape(-1)
    absmax = torch.linalg.vector_norm(rows, torch.inf, dim=1)
    scaled = rows / absmax.clamp(min=1e-30).unsqueeze(1)
    if points is None:
        codes = torch.floor(scaled * 127 + 0.5).char()
    else:
        codes = torch.cdist(scaled.view(-1, 1), points.view(-1, 1)).argmin(1).byte()
    return [codes.view(-1)[:n].view(weights.shape), absmax]
""",
    ("pack_q4_0", "block by block"): """
def pack_q4_0(weights):
    rows = []
    for block in weights.split(32):
        largest = max(block.tolist(), key=abs)
        d = torch.tensor([largest]) / -8
        steps = block * (1 / d) if largest else block
        levels = (steps + 8.5).int().clamp(0, 15)
        nibbles = (levels[:16] + 16 * levels[16:]).byte()
        rows.append(torch.cat([d.half().view(torch.uint8), nibbles]))
    return torch.stack(rows)
""",
    ("pack_q4_0", "in NumPy"): """
def pack_q4_0(weights):
    import numpy as np
    blocks = weights.numpy().reshape(-1, 2, 16)
    flat = blocks.reshape(-1, 32)
    d = flat[np.arange(len(flat)), np.abs(flat).argmax(1)] * np.float32(-0.125)
    steps = blocks * (1 / np.where(d == 0, np.float32(1), d))[:, None, None]
    low, high = np.minimum(np.floor(steps + 8.5), 15).astype(np.uint8).transpose(1, 0, 2)
    scale = d.astype("<f2").view(np.uint8).reshape(-1, 2)
    return torch.from_numpy(np.concatenate([scale, high * 16 + low], axis=1))
""",
    ("outliers", "sets columns to zero, and sums in fp64"): """
def outliers(x, w, threshold):
    high = (x.abs() > threshold).any(0)
    parts = [torch.where(high, 0, each) for each in (x, w)]
    tops = [each.abs().max(1).values for each in parts]
    codes = [torch.round(each.T * 127 / torch.where(top > 0, top, 1)).double()
        for each, top in zip(parts, tops)]
    sums = torch.einsum("fi,fo->io", *codes)
    y = sums * torch.outer(*tops) / 127**2 + (x * high).double() @ w.T.double()
    return y.float()
""",
    ("outliers", "row by row in NumPy"): """
def outliers(x, w, threshold):
    import numpy as np
    x, w = x.numpy(), w.numpy()
    regular = [j for j in range(x.shape[1]) if abs(x[:, j]).max() <= threshold]
    others = np.setdiff1d(np.arange(x.shape[1]), regular)

    def quantize(row):
        scale = abs(row).max() / np.float32(127)
        return (np.rint(row / scale) if scale else row).astype(np.int32), scale

    columns = [quantize(row) for row in w[:, regular]]
    y = [[a @ b * (s * t) for b, t in columns] for a, s in map(quantize, x[:, regular])]
    return torch.tensor(np.array(y, np.float32) + x[:, others] @ w[:, others].T)
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
