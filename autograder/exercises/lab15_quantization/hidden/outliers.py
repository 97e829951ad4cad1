from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab15_quantization.outliers import THRESHOLD, matmul_case

CASES = (
    matmul_case("more rows than features", 40, 13, 33, columns=(5, 6), zeros=0, once=6, tiny=2),
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
    "a tiny row of x": "one feature at 60, one at 7",
    "a tiny row of w": "no outlier, one feature at the threshold",
    "a feature that exceeds the threshold in one row": "one feature at 60, one at 7",
    "only outliers": "not tested: the task excludes it",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "x_codes.int() @ w_codes.T.int()",
        "x_codes.float() @ w_codes.T.float()",
        "fp32 sums of codes are exact as long as they stay below 2²⁴",
    ),
)

Scale = Callable[[Tensor, Tensor], Tensor]  # a matrix, its regular columns  ->  [rows or 1, 1]
# (x, w, threshold)  ->  True at outlier features [features]
Outliers = Callable[[Tensor, Tensor, float], Tensor]


def per_row(matrix: Tensor, regular: Tensor) -> Tensor:
    return regular.abs().amax(1, keepdim=True) / 127


def per_tensor(matrix: Tensor, regular: Tensor) -> Tensor:
    return regular.abs().amax().view(1, 1) / 127


def of_all_columns(matrix: Tensor, regular: Tensor) -> Tensor:
    return per_row(matrix, matrix)


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
) -> Tensor:
    def quantized(matrix: Tensor, scale: Scale) -> tuple[Tensor, Tensor]:
        regular = matrix[:, ~chosen]
        scales = scale(matrix, pad(regular, (0, 1)))  # there may be no regular feature
        scales = torch.where(scales == 0, 1.0, scales)
        return rounds(regular / scales).long(), scales

    chosen = outliers(x, w, threshold)
    (x_codes, x_scales), (w_codes, w_scales) = quantized(x, x_scale), quantized(w, w_scale)
    sums = (x_codes @ w_codes.T).to(sums_dtype)
    return sums * (x_scales * w_scales.T) + x[:, chosen] @ w[:, chosen].T


def matrices(case: Case, inputs: Any) -> tuple[Tensor, Tensor, float]:
    return inputs[0]["x"], inputs[0]["w"], case.params["threshold"]


def reference(case: Case, inputs: Any, **changes: Any) -> dict[str, Plain]:
    return {"y": product(*matrices(case, inputs), **changes)}


def wrong(**changes: Any) -> Callable[..., Plain]:
    return lambda case, inputs: {"y": product(*matrices(case, inputs), **changes)}


def exact(case: Case, inputs: Any) -> Plain:
    return {"y": inputs[0]["x"] @ inputs[0]["w"].T}


def outlier_rows(case: Case, inputs: Any) -> Plain:
    """The rows of x with an outlier in fp32, the others in int8."""
    x, w, threshold = matrices(case, inputs)
    is_outlier = (x.abs().amax(1) > threshold)[:, None]
    return {"y": torch.where(is_outlier, x @ w.T, product(x, w, threshold, nothing))}


def counted_twice(case: Case, inputs: Any) -> Plain:
    """int8 codes of all features, and the outliers' product again."""
    x, w, threshold = matrices(case, inputs)
    chosen = exceeds(x, w, threshold)
    return {"y": product(x, w, threshold, nothing) + x[:, chosen] @ w[:, chosen].T}


# If two mistakes agree in a case, the one that is correct in more cases comes first.
MISTAKES = {
    "compares values, not their magnitude, with the threshold: an outlier may be negative": wrong(
        outliers=lambda x, w, threshold: x.amax(0) > threshold
    ),
    "takes features that only reach the threshold: an outlier exceeds it": wrong(
        outliers=lambda x, w, threshold: x.abs().amax(0) >= threshold
    ),
    "takes a scale from all features of x or w: one outlier makes it so large that the regular "
    "values get few codes": (
        wrong(x_scale=of_all_columns),
        wrong(w_scale=of_all_columns),
        wrong(x_scale=of_all_columns, w_scale=of_all_columns),
    ),
    "counts the outliers twice: quantize only the other features": counted_twice,
    "computes everything in fp32: the regular features have to be rounded to int8": exact,
    "ignores the argument `threshold`": wrong(
        outliers=lambda x, w, threshold: exceeds(x, w, THRESHOLD)
    ),
    "misses a feature of which one value exceeds the threshold: compare the largest magnitude of "
    "the whole column, not a mean or some of its rows": (
        wrong(outliers=lambda x, w, threshold: x.abs().mean(0) > threshold),
        wrong(outliers=lambda x, w, threshold: x.square().mean(0).sqrt() > threshold),
    ),
    "looks for outliers in the weights: only the values of x count": wrong(
        outliers=lambda x, w, threshold: w.abs().amax(0) > threshold
    ),
    "takes the outliers' rows out of x: outliers share a feature, a column of x": outlier_rows,
    "quantizes the outliers too: compute their features in fp32": wrong(outliers=nothing),
    "quantizes x, w or both with one scale for the whole tensor: each row has its own": (
        wrong(x_scale=per_tensor),
        wrong(w_scale=per_tensor),
        wrong(x_scale=per_tensor, w_scale=per_tensor),
        wrong(x_scale=per_tensor, w_scale=per_tensor, outliers=nothing),
    ),
    "rounds down or toward 0: round to the nearest code": (
        wrong(rounds=torch.trunc),
        wrong(rounds=torch.floor),
    ),
    "sums in too few bits, where the sums overflow: a product of two codes takes up to 15 bits, "
    "so sum in int32": (wrong(sums_dtype=torch.int8), wrong(sums_dtype=torch.int16)),
}
