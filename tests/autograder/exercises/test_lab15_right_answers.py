"""Lab 15: right answers that differ from the solution earn full marks."""

from __future__ import annotations

import cloudpickle
import pytest

from autograder import exercises
from autograder.evaluation.decide import decide
from tests.submissions import planted

pytestmark = pytest.mark.ranks

LAB = "15_quantization"
SEED = 11
RIGHT = {
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
}


@pytest.mark.parametrize(("answer", "way"), RIGHT)
def test_right_answers_pass(answer: str, way: str) -> None:
    (exercise,) = (each for each in exercises.of_lab(LAB) if each.answer == answer)
    answers = planted.solution(LAB) | {answer: RIGHT[answer, way]}
    verdict = decide(exercise, cloudpickle.dumps(planted.subjects(LAB, answers)[answer]), SEED)
    assert verdict.passed, [case.diagnosis for case in verdict.cases if not case.passed]
