from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab12_lora_quantization.quantize_blockwise import (
    RETURNS_DIVISOR,
    weights_of,
)

CASES = (
    Case(
        "int8 and NF4, larger",
        1,
        {
            "tensors": [
                weights_of((33, 50), 64, "int8", zeros=3, tiny=4),
                weights_of((50, 33), 64, "nf4", zeros=25, tiny=24),
            ]
        },
    ),
    Case("8 other points", 1, {"tensors": [weights_of((9, 21), 32, "8 points", zeros=2)]}),
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

SMALL = (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)  # what is often added to a divisor
Rule = Callable[[Tensor, Tensor | None], Tensor]  # (weights / absmax, points) -> codes


def blocks_of(given: Any) -> tuple[Tensor, ...]:
    return tuple(given["weights"].flatten().split(given["block"]))


def largest_magnitude(block: Tensor) -> Tensor:
    return block.abs().max()


def nearest(scaled: Tensor, points: Tensor | None) -> Tensor:
    if points is None:
        return torch.round(scaled * 127).to(torch.int8)
    return (scaled[:, None] - points).abs().argmin(dim=1).to(torch.uint8)


def reference(case: Case, inputs: Any) -> Plain:
    return absmax_by(blocks_of)(case, inputs) | codes_by(nearest)(case, inputs)


def codes_by(
    rule: Rule, divides: bool = True, least_divisor: float = 0.0, addend: float = 0.0
) -> Callable[[Case, Any], Plain]:
    """Codes of weights that are divided by the right scale, in a block of zeros by 1.

    ``divides``: even if there are points.
    """

    def codes(given: Any) -> Tensor:
        found = []
        for block in blocks_of(given):
            absmax = largest_magnitude(block) if divides or given["points"] is None else 0
            divisor = max(absmax, least_divisor) + addend if absmax > 0 else 1.0
            found.append(rule(block / divisor, given["points"]))
        return torch.cat(found).view(given["weights"].shape)

    return lambda case, inputs: {"codes": [codes(each) for each in inputs[0]["tensors"]]}


def absmax_by(
    blocks: Callable[[Any], Iterable[Tensor]],
    scale: Callable[[Tensor], Tensor] = largest_magnitude,
) -> Callable[[Case, Any], Plain]:
    def absmax(given: Any) -> Tensor:
        return torch.stack([scale(block) for block in blocks(given)])

    return lambda case, inputs: {"absmax": [absmax(each) for each in inputs[0]["tensors"]]}


def whole_tensor_for_each_block(given: Any) -> list[Tensor]:
    return [given["weights"]] * len(blocks_of(given))


def whole_tensor_as_number(case: Case, inputs: Any) -> Plain:
    tensors = inputs[0]["tensors"]
    return {"absmax": [largest_magnitude(each["weights"]) for each in tensors]}


def of_columns(given: Any) -> list[Tensor]:
    columns = given["weights"].movedim(0, -1)
    return list(columns.flatten().split(given["block"]))


def of_each_row(given: Any) -> list[Tensor]:
    """Blocks, with a new one at the start of each row."""
    rows = given["weights"].flatten(0, -2) if given["weights"].ndim > 1 else given["weights"][None]
    return [block for row in rows for block in row.split(given["block"])]


def full_blocks(given: Any) -> list[Tensor]:
    whole = given["weights"].numel() // given["block"]
    # Nothing would be left of a tensor with fewer weights than a block.
    return list(blocks_of(given))[: max(whole, 1)]


def int8_only(rule: Callable[[Tensor], Tensor]) -> Rule:
    return lambda scaled, points: nearest(scaled, points) if points is not None else rule(scaled)


def points_only(rule: Callable[[Tensor, Tensor], Tensor]) -> Rule:
    return lambda scaled, points: (
        nearest(scaled, points) if points is None else rule(scaled, points).to(torch.uint8)
    )


def wrapped(codes: Tensor) -> Tensor:
    """The codes as int8, where 128 becomes -128."""
    return ((codes + 128) % 256 - 128).to(torch.int8)


def point_below(scaled: Tensor, points: Tensor) -> Tensor:
    return torch.searchsorted(points, scaled, right=True) - 1


def point_above(scaled: Tensor, points: Tensor) -> Tensor:
    return torch.searchsorted(points, scaled)


def evenly_spaced(scaled: Tensor, points: Tensor) -> Tensor:
    last = len(points) - 1
    return ((scaled + 1) / 2 * last).round().clamp(0, last)


def last_point(scaled: Tensor, points: Tensor) -> Tensor:
    """The point whose signed difference from any weight is the smallest."""
    return torch.full((len(scaled),), len(points) - 1)


def code_0_for_zeros(scaled: Tensor, points: Tensor) -> Tensor:
    """0 / 0 is NaN, and so is its distance to each point: argmin returns the first."""
    return nearest(scaled, points) if scaled.any() else torch.zeros(len(scaled))


def past_the_last(scaled: Tensor, points: Tensor) -> Tensor:
    """0 / 0 is NaN: searchsorted puts it after the last boundary."""
    last = torch.full((len(scaled),), len(points) - 1)
    return nearest(scaled, points) if scaled.any() else last


ONE_SIDE = "takes the code point below a weight, or the one above: the other one may be nearer"
MISTAKES = {
    "uses one scale for the whole tensor: each block has its own": (
        absmax_by(whole_tensor_for_each_block),
        absmax_by(lambda given: [given["weights"]]),
        whole_tensor_as_number,
    ),
    "takes the largest weight, not the largest magnitude: it may be a negative weight": (
        absmax_by(blocks_of, torch.max),
        absmax_by(blocks_of, lambda block: block.max().clamp(min=0)),  # of a block with padding
    ),
    "returns the step between two codes as the scale, not absmax": absmax_by(
        blocks_of, lambda block: largest_magnitude(block) / 127
    ),
    "puts weights of one column into a block: blocks are consecutive weights of a row, as in "
    "memory": absmax_by(of_columns),
    "begins a new block in each row: blocks continue from one row to the next": absmax_by(
        of_each_row
    ),
    "loses the last block, which is not full": absmax_by(full_blocks),
    "cuts off the fraction: round to the nearest int8 code": (
        codes_by(int8_only(lambda scaled: (scaled * 127).to(torch.int8))),
        codes_by(int8_only(lambda scaled: (scaled * 127).floor().to(torch.int8))),
    ),
    "multiplies by 128, which does not fit in int8: codes go from -127 to 127": (
        codes_by(int8_only(lambda scaled: wrapped((scaled * 128).round()))),
        codes_by(int8_only(lambda scaled: (scaled * 128).round().clamp(-128, 127).to(torch.int8))),
        codes_by(int8_only(lambda scaled: wrapped((scaled * 128).trunc()))),
    ),
    ONE_SIDE: (codes_by(points_only(point_below)), codes_by(points_only(point_above))),
    "treats the points as evenly spaced: look for the nearest one": codes_by(
        points_only(evenly_spaced)
    ),
    "takes the smallest signed difference: compare distances, which abs() gives": (
        codes_by(points_only(last_point))
    ),
    "compares the weights themselves with the points: divide them by absmax": codes_by(
        nearest, divides=False
    ),
    RETURNS_DIVISOR: absmax_by(
        blocks_of, lambda block: largest_magnitude(block) if block.any() else torch.tensor(1.0)
    ),
    "gives a block of zeros another code than that of the point 0: 0 / 0 is NaN, and a fixed code "
    "fits only some points": (
        codes_by(points_only(code_0_for_zeros)),
        codes_by(points_only(past_the_last)),
    ),
    "divides tiny weights by more than their absmax, or takes them for zeros: add nothing to "
    "absmax, and use another divisor only if it is 0": (
        *(codes_by(nearest, least_divisor=least) for least in SMALL),
        *(codes_by(nearest, addend=addend) for addend in SMALL),
    ),
}
