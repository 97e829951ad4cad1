"""Codes of 8 or 4 bits for weights, with one scale per block."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from autograder.exercise import Case, OnRanks, Plain, equal
from autograder.exercise.signs import MistakeText, on_each_rank
from autograder.guest.integer_nan import IntegerNan
from shardlab.estimate.quantization import nf4_code_points

POINTS = {  # weights are drawn near them
    "int8": [code / 127 for code in range(-127, 128)],
    "nf4": nf4_code_points(),
    "8 points": [-1.0, -0.42, 0.0, 0.13, 0.28, 0.47, 0.66, 0.87],
}
# Largest offset from a point, as a fraction of the distance to the next one: closer to the
# midpoint, another order of operations may give the other point's code.
MAX_OFFSET = 0.49
TINY = 4e-13  # whatever is added to it makes another divisor


def weights_of(shape: tuple[int, ...], block: int, kind: str, **others: Any) -> dict[str, Any]:
    """A tensor to quantize. ``others``: see `draw_tensor`."""
    return {"shape": shape, "block": block, "kind": kind, **others}


def tensors_case(name: str, *tensors: dict[str, Any]) -> Case:
    return Case(name, 1, {"tensors": tensors})


def draw_inputs(case: Case, rng: np.random.Generator) -> Plain:
    return {"tensors": [draw_tensor(rng, **each) for each in case.params["tensors"]]}


def draw_tensor(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    block: int,
    kind: str,
    zeros: int | None = None,
    tiny: int | None = None,
    called: str = "",
) -> Plain:
    """The largest magnitude is negative in the first block, positive in the next, and so on.  A
    last block that is not full has small weights, so that what is padded with shows.

    ``zeros``: a block of zeros, if any.  ``tiny``: one of tiny weights.  ``called``: in messages.
    """
    size, factors = math.prod(shape), {zeros: 0.0, tiny: TINY}
    if size % block:
        factors.setdefault(size // block, 0.1)
    blocks = [
        draw_block(rng, min(block, size - start), kind, i % 2 == 0) * factors.get(i, 1.0)
        for i, start in enumerate(range(0, size, block))
    ]
    weights = torch.from_numpy(np.concatenate(blocks)).float().view(shape)
    points = None if kind == "int8" else torch.tensor(POINTS[kind])
    return {"name": called or kind, "weights": weights, "block": block, "points": points}


def draw_block(rng: np.random.Generator, size: int, kind: str, negative: bool) -> Any:
    """Weights near code points, never halfway between two; the largest magnitude has one sign."""
    points = np.array(POINTS[kind])
    below, above = np.diff(points, prepend=-1.0), np.diff(points, append=1.0)
    codes = rng.integers(len(points) - 1, size=size) + (not negative)
    offset = rng.uniform(-MAX_OFFSET, MAX_OFFSET, size)
    scaled = points[codes] + offset * np.where(offset < 0, below[codes], above[codes])
    scaled[rng.integers(size)] = -1.0 if negative else 1.0
    return scaled * rng.uniform(0.5, 2.0)


def drive(subject: Callable[..., Any], given: Plain, case: Case) -> Plain:
    output: dict[str, Any] = {"codes": {}, "absmax": {}, "returned": "", "unchanged": True}
    output["NaN in codes"] = False
    for each in given["tensors"]:
        weights = each["weights"].clone()
        points = () if each["points"] is None else (each["points"].clone(),)
        with IntegerNan() as converted:
            returned = subject(weights, each["block"], *points)
        parts = returned if isinstance(returned, tuple | list) else [returned]
        if len(parts) != 2 or not all(isinstance(part, torch.Tensor) for part in parts):
            return {"returned": ", ".join(type(part).__name__ for part in parts)}
        output["codes"][each["name"]], output["absmax"][each["name"]] = parts
        output["unchanged"] &= torch.equal(weights, each["weights"])
        output["NaN in codes"] |= converted.found
    return output


@on_each_rank
def returns_no_pair(output: Any) -> MistakeText:
    if kinds := output["returned"]:
        return "should return two tensors, the codes and absmax", f"returned: {kinds}"
    return None


@on_each_rank
def converts_nan(output: Any) -> MistakeText:
    """A rule: with some CPUs, the result is 0 and right."""
    if output["NaN in codes"]:
        return "converts NaN to codes: in a block of zeros, 0 / 0 is NaN"
    return None


@on_each_rank
def changes_weights(output: Any) -> MistakeText:
    if not output["unchanged"]:
        return "changes the caller's weights: divide a copy of them"
    return None


@on_each_rank
def returns_divisor(output: Any, expected: Any) -> MistakeText:
    """A rule, because divisors may be smaller than the tolerance."""
    for name, right in expected["absmax"].items():
        got = output["absmax"][name]
        if equal(right, got, 1e-2) and (got[right == 0] != 0).any():
            return "returns the divisor of a block of zeros as its absmax, which is 0"
    return None


EXERCISE = OnRanks(
    points=4,
    cases=(
        tensors_case("int8, whole blocks", weights_of((6, 40), 48, "int8")),
        tensors_case("NF4, whole blocks", weights_of((6, 40), 48, "nf4")),
        tensors_case(
            "last blocks that are not full",
            weights_of((7, 11), 24, "int8"),
            weights_of((2, 3, 17), 24, "nf4"),
            weights_of((19,), 64, "nf4", called="less than a block"),
            weights_of((13, 5), 16, "8 points"),
        ),
        tensors_case(
            "a block of zeros, and one of tiny weights",
            *(weights_of((5, 24), 40, kind, zeros=1, tiny=2) for kind in POINTS),
        ),
    ),
    inputs=draw_inputs,
    drive=drive,
    allows=frozenset(),
    kept_from_ranks=frozenset({"tensors"}),
    rules=(returns_no_pair, converts_nan, returns_divisor, changes_weights),
)
