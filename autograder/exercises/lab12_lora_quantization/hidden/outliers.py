from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab12_lora_quantization.outliers import THRESHOLD, matmul_case

CASES = (
    matmul_case("more rows than features", 40, 13, 33, columns=(5, 6), zeros=0, once=6),
    matmul_case("many features", 7, 600, 21, columns=(3, 200, 599), at=77),
)
BOUNDARIES = {
    "divides": "not tested: nothing is divided among ranks",
    "does not divide": "not tested, as above",
    "one rank": "one feature at 60, one at 7",
    "more ranks than elements": "not tested: there is one rank",
    "no outlier": "no outlier, one feature at the threshold",
    "at the threshold": "no outlier, one feature at the threshold",
    "a row of zeros": "one feature at 60, one at 7",
    "a feature that exceeds the threshold in one row": "one feature at 60, one at 7",
    "only outliers": "not tested: the task excludes it",
}

Scale = Callable[[Tensor, Tensor], Tensor]  # a matrix, its regular columns  ->  [rows or 1, 1]
# (x, w, threshold)  ->  True at outlier features [features]
Outliers = Callable[[Tensor, Tensor, float], Tensor]


def per_row(matrix: Tensor, regular: Tensor) -> Tensor:
    return regular.abs().amax(1, keepdim=True) / 127


def per_tensor(matrix: Tensor, regular: Tensor) -> Tensor:
    return regular.abs().amax().view(1, 1) / 127


def with_outliers(matrix: Tensor, regular: Tensor) -> Tensor:
    """Each row's scale, taken from all columns."""
    return matrix.abs().amax(1, keepdim=True) / 127


def without_abs(matrix: Tensor, regular: Tensor) -> Tensor:
    return regular.amax(1, keepdim=True) / 127


def by_128(matrix: Tensor, regular: Tensor) -> Tensor:
    return regular.abs().amax(1, keepdim=True) / 128


def clamped(matrix: Tensor, regular: Tensor, least: float) -> Tensor:
    return per_row(matrix, regular).clamp(min=least)


def exceeds(x: Tensor, w: Tensor, threshold: float) -> Tensor:
    return x.abs().amax(0) > threshold


def nothing(x: Tensor, w: Tensor, threshold: float) -> Tensor:
    return torch.zeros(x.shape[1], dtype=torch.bool)


def product(
    x: Tensor,
    w: Tensor,
    threshold: float,
    outliers: Outliers = exceeds,
    x_scale: Scale = per_row,
    w_scale: Scale = per_row,
    rounds: Callable[[Tensor], Tensor] = torch.round,
    sums_dtype: torch.dtype = torch.int32,
    keeps: float = 1.0,
    dtype: torch.dtype = torch.float32,
    restores: Callable[[Tensor, Tensor], Tensor] = torch.mul,
) -> Tensor:
    """``keeps``, ``dtype``: the factor and operand dtype of the outliers' product. ``restores``:
    what the sums are multiplied by, from the scales of x and of w."""
    chosen = outliers(x, w, threshold)
    x_codes, x_scales = quantized(x, x[:, ~chosen], x_scale, rounds)
    w_codes, w_scales = quantized(w, w[:, ~chosen], w_scale, rounds)
    sums = (x_codes.long() @ w_codes.long().T).to(sums_dtype)
    in_full = x[:, chosen].to(dtype).float() @ w[:, chosen].to(dtype).float().T
    return sums * restores(x_scales, w_scales.T) + keeps * in_full


def quantized(
    matrix: Tensor, regular: Tensor, scale: Scale, rounds: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    scales = scale(matrix, regular)
    scales = torch.where(scales == 0, torch.ones_like(scales), scales)
    return rounds(regular / scales), scales


def reference(case: Case, inputs: Any, **changes: Any) -> dict[str, Plain]:
    y = product(*matrices(case, inputs), **changes)
    return {"y": y, "arguments unchanged": True}


def matrices(case: Case, inputs: Any) -> tuple[Tensor, Tensor, float]:
    return inputs[0]["x"], inputs[0]["w"], case.params["threshold"]


def wrong(**changes: Any) -> Callable[..., Plain]:
    return lambda case, inputs: {"y": reference(case, inputs, **changes)["y"]}


def exact(case: Case, inputs: Any) -> Plain:
    return {"y": inputs[0]["x"] @ inputs[0]["w"].T}


def outlier_rows(case: Case, inputs: Any) -> Plain:
    """The rows of x with an outlier in fp32, the others in int8."""
    x, w, threshold = matrices(case, inputs)
    is_outlier = (x.abs().amax(1) > threshold)[:, None]
    return {"y": torch.where(is_outlier, x @ w.T, product(x, w, threshold, nothing))}


def outlier_values(case: Case, inputs: Any) -> Plain:
    """Each value above the threshold in fp32, the rest of its feature in int8."""
    x, w, threshold = matrices(case, inputs)
    high = torch.where(x.abs() > threshold, x, 0)
    return {"y": product(x - high, w, threshold, nothing) + high @ w.T}


def counted_twice(x_scale: Scale, w_scale: Scale, clamps: bool) -> Callable[..., Plain]:
    """int8 codes of all features, and the outliers' product again."""

    def of(case: Case, inputs: Any) -> Plain:
        x, w, threshold = matrices(case, inputs)
        chosen = exceeds(x, w, threshold)
        parts = []
        for matrix, scale in ((x, x_scale), (w, w_scale)):
            codes, scales = quantized(matrix, matrix[:, ~chosen], scale, lambda each: each)
            codes = (matrix / scales).round()
            parts.append((codes.clamp(-127, 127) if clamps else codes, scales))
        (x_codes, x_scales), (w_codes, w_scales) = parts
        sums = x_codes.long() @ w_codes.long().T
        return {"y": sums * x_scales * w_scales.T + x[:, chosen] @ w[:, chosen].T}

    return of


def in_16_bits(dtype: torch.dtype) -> Callable[..., Plain]:
    """The outliers' product rounded to 16 bits as well."""

    def of(case: Case, inputs: Any) -> Plain:
        x, w, threshold = matrices(case, inputs)
        chosen = exceeds(x, w, threshold)
        in_full = x[:, chosen].to(dtype) @ w[:, chosen].to(dtype).T
        return {"y": product(x, w, threshold, keeps=0.0) + in_full.float()}

    return of


def weights_only(case: Case, inputs: Any) -> Plain:
    x, w, threshold = matrices(case, inputs)
    chosen = exceeds(x, w, threshold)
    codes, scales = quantized(w, w[:, ~chosen], per_row, torch.round)
    return {"y": x[:, ~chosen] @ (codes * scales).T + x[:, chosen] @ w[:, chosen].T}


def per_feature(case: Case, inputs: Any) -> Plain:
    """Scales per column: codes would have to be multiplied by them before they are summed."""
    x, w, threshold = matrices(case, inputs)
    chosen = exceeds(x, w, threshold)
    parts = []
    for regular in (x[:, ~chosen], w[:, ~chosen]):
        scales = regular.abs().amax(0) / 127
        parts.append((regular / scales).round() * scales)
    return {"y": parts[0] @ parts[1].T + x[:, chosen] @ w[:, chosen].T}


# If two mistakes agree in a case, the one that is correct in more cases comes first.
MISTAKES = {
    "treats a feature that only reaches the threshold as an outlier: it has to exceed it": wrong(
        outliers=lambda x, w, threshold: x.abs().amax(0) >= threshold
    ),
    "compares values, not their magnitude, with the threshold: an outlier may be negative": wrong(
        outliers=lambda x, w, threshold: x.amax(0) > threshold
    ),
    "takes the scale of x from all its features: one outlier makes it so large that the regular "
    "values get few codes": (
        wrong(x_scale=with_outliers),
        wrong(x_scale=with_outliers, w_scale=with_outliers),
    ),
    "takes the scales of w from all features: quantize only its regular columns": wrong(
        w_scale=with_outliers
    ),
    "leaves the outliers out: add their product in fp32": wrong(keeps=0.0),
    "counts the outliers twice: quantize only the other features": (
        wrong(keeps=2.0),
        counted_twice(with_outliers, with_outliers, clamps=False),
        counted_twice(per_row, per_row, clamps=True),
        counted_twice(per_row, per_row, clamps=False),
    ),
    "ignores the argument `threshold`": wrong(
        outliers=lambda x, w, threshold: exceeds(x, w, THRESHOLD)
    ),
    "misses a feature of which one value exceeds the threshold: compare the largest magnitude of "
    "the whole column, not a mean or some of its rows": (
        wrong(outliers=lambda x, w, threshold: x.abs().mean(0) > threshold),
        wrong(outliers=lambda x, w, threshold: x.square().mean(0).sqrt() > threshold),
    ),
    "clamps the scale of small values: clamp it to a minimum that no real scale reaches": tuple(
        wrong(x_scale=partial(clamped, least=least), w_scale=partial(clamped, least=least))
        for least in (1e-4, 1e-3, 1e-2, 1e-2 / 127)
    ),
    "treats only one feature as an outlier: every feature that exceeds the threshold is one": wrong(
        outliers=lambda x, w, threshold: (
            exceeds(x, w, threshold) & (x.abs().amax(0) == x.abs().max())
        )
    ),
    "multiplies the sums by only one of the two scales, or by none": (
        wrong(restores=lambda x_scales, w_scales: x_scales),
        wrong(restores=lambda x_scales, w_scales: w_scales),
        wrong(restores=lambda x_scales, w_scales: torch.ones(())),
    ),
    "looks for outliers in the weights: only the values of x count": (
        wrong(outliers=lambda x, w, threshold: w.abs().amax(0) > threshold),
        wrong(
            outliers=lambda x, w, threshold: (
                (w.abs().amax(0) > threshold) | exceeds(x, w, threshold)
            )
        ),
    ),
    "takes the outliers' rows out of x: outliers share a feature, a column of x": outlier_rows,
    "takes single values out of x: if one value of a feature exceeds the threshold, the whole "
    "column is computed in fp32": outlier_values,
    "quantizes the outliers too: compute their features in fp32": wrong(outliers=nothing),
    "quantizes x, w or both with one scale for the whole tensor: each row has its own": (
        wrong(x_scale=per_tensor),
        wrong(w_scale=per_tensor),
        wrong(x_scale=per_tensor, w_scale=per_tensor),
        wrong(x_scale=per_tensor, w_scale=per_tensor, outliers=nothing),
    ),
    "takes a scale for each feature: a sum over features needs one scale for all of them, that "
    "of the row": per_feature,
    "takes the largest value of a row for its scale, not the largest magnitude": (
        wrong(x_scale=without_abs),
        wrong(w_scale=without_abs),
        wrong(x_scale=without_abs, w_scale=without_abs),
    ),
    "truncates instead of rounding: round to the nearest code": (
        wrong(rounds=torch.trunc),
        wrong(rounds=torch.floor),
    ),
    "divides by 128: the largest magnitude gets the code 127": (
        wrong(x_scale=by_128, w_scale=by_128),
        wrong(
            x_scale=by_128,
            w_scale=by_128,
            rounds=lambda each: each.round().clamp(-128, 127),
        ),
        wrong(x_scale=by_128, w_scale=by_128, rounds=lambda each: each.round().to(torch.int8)),
    ),
    "sums in too few bits, where the sums overflow: a product of two codes takes up to 15 bits, "
    "so sum in int32": (wrong(sums_dtype=torch.int8), wrong(sums_dtype=torch.int16)),
    "rounds the outliers to 16 bits: their product is computed in fp32": (
        wrong(dtype=torch.float16),
        in_16_bits(torch.float16),
        wrong(dtype=torch.bfloat16),
        in_16_bits(torch.bfloat16),
    ),
    "computes everything in fp32: the regular features have to be rounded to int8": exact,
    "quantizes only the weights: x is rounded to int8, too": weights_only,
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "x_codes.int() @ w_codes.T.int()",
        "x_codes.float() @ w_codes.T.float()",
        "fp32 sums of codes are exact as long as they stay below 2²⁴",
    ),
)
