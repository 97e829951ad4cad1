from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab15_quantization.quantize_blockwise import (
    tensors_case,
    weights_of,
)

CASES = (
    tensors_case(
        "int8 and NF4, larger",
        weights_of((33, 50), 64, "int8", zeros=3, tiny=4),
        weights_of((50, 33), 64, "nf4", zeros=25, tiny=24),
    ),
    tensors_case("8 other points", weights_of((9, 21), 32, "8 points", zeros=2)),
)
BOUNDARIES = {
    "divides": "int8, whole blocks",
    "does not divide": "last blocks that are not full",
    "one rank": "NF4, whole blocks",
    "more ranks than elements": "not tested: nothing is divided among ranks",
    "blocks that end within a row": "int8, whole blocks",
    "fewer weights than a block": "last blocks that are not full",
    "a block of zeros": "a block of zeros, and one of tiny weights",
    "a negative weight has the largest magnitude": "NF4, whole blocks",
    "one or three dimensions": "last blocks that are not full",
    "points other than NF4's": "last blocks that are not full",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "absmax == 0, 1.0, absmax", "absmax == 0, 2.0, absmax", "zeros, whatever divides them"
    ),
)

Rule = Callable[[Tensor, Tensor | None], Tensor]  # (weights / absmax, points) -> codes


def blocks_of(given: Any) -> tuple[Tensor, ...]:
    return tuple(given["weights"].flatten().split(given["block"]))


def magnitude(block: Tensor) -> Tensor:
    return block.abs().max()


def nearest(scaled: Tensor, points: Tensor | None) -> Tensor:
    if points is None:
        return torch.round(scaled * 127).to(torch.int8)
    return (scaled[:, None] - points).abs().argmin(dim=1).to(torch.uint8)


def codes_by(
    rule: Rule, least_divisor: float = 0.0, addend: float = 0.0
) -> Callable[[Case, Any], Plain]:
    """Codes of weights that are divided by the right scale, in a block of zeros by 1."""

    def codes(given: Any) -> Tensor:
        found = []
        for block in blocks_of(given):
            absmax = magnitude(block)
            divisor = absmax.clamp(min=least_divisor) + addend if absmax > 0 else 1.0
            found.append(rule(block / divisor, given["points"]))
        return torch.cat(found).view(given["weights"].shape)

    return lambda case, inputs: {
        "codes": {each["name"]: codes(each) for each in inputs[0]["tensors"]}
    }


def absmax_by(scale: Callable[[Tensor, Any], Tensor]) -> Callable[[Case, Any], Plain]:
    """``scale``: of a block, and the tensor that it is from."""
    return lambda case, inputs: {
        "absmax": {
            given["name"]: torch.stack(
                [scale(block, given["weights"]) for block in blocks_of(given)]
            )
            for given in inputs[0]["tensors"]
        }
    }


def reference(case: Case, inputs: Any) -> Plain:
    absmax = absmax_by(lambda block, weights: magnitude(block))
    return absmax(case, inputs) | codes_by(nearest)(case, inputs)


def int8_only(rule: Callable[[Tensor], Tensor]) -> Rule:
    return lambda scaled, points: nearest(scaled, points) if points is not None else rule(scaled)


def points_only(rule: Callable[[Tensor, Tensor], Tensor]) -> Rule:
    return lambda scaled, points: (
        nearest(scaled, points) if points is None else rule(scaled, points).to(torch.uint8)
    )


def fixed_for_zeros(code: Callable[[int], int]) -> Rule:
    """``code``: of the number of points; 0 if 0 / 0 is NaN, of which argmin returns the first."""
    return points_only(
        lambda scaled, points: (
            nearest(scaled, points) if scaled.any() else torch.full_like(scaled, code(len(points)))
        )
    )


SMALL = (1e-12, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)  # what is often added to a divisor
MISTAKES = {
    "uses one scale for the whole tensor: each block has its own": absmax_by(
        lambda block, weights: magnitude(weights)
    ),
    "takes the largest weight, not the largest magnitude: it may be a negative weight": (
        absmax_by(lambda block, weights: block.max()),
        absmax_by(lambda block, weights: block.max().clamp(min=0)),  # of a block with padding
    ),
    "cuts off the fraction: round to the nearest int8 code": codes_by(
        int8_only(lambda scaled: (scaled * 127).to(torch.int8))
    ),
    "takes the code point below a weight, or the one above: the other one may be nearer": (
        codes_by(
            points_only(lambda scaled, points: torch.searchsorted(points, scaled, right=True) - 1)
        ),
        codes_by(points_only(lambda scaled, points: torch.searchsorted(points, scaled))),
    ),
    "gives a block of zeros another code than that of the point 0: 0 / 0 is NaN, and a fixed code "
    "fits only some points": (
        codes_by(fixed_for_zeros(lambda n: 0)),
        codes_by(fixed_for_zeros(lambda n: 7)),
        codes_by(fixed_for_zeros(lambda n: n // 2 - 1)),
        codes_by(fixed_for_zeros(lambda n: n // 2)),
    ),
    "divides tiny weights by more than their absmax, or takes them for zeros: add nothing to "
    "absmax, and use another divisor only if it is 0": (
        *(codes_by(nearest, least_divisor=least) for least in SMALL),
        *(codes_by(nearest, addend=addend) for addend in SMALL),
    ),
}
