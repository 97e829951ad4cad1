"""The bytes of GGUF's Q4_0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from autograder.exercise import Case, OnRanks, Plain
from autograder.exercise.signs import MistakeText, on_each_rank

BLOCK = 32  # weights
# With these levels and a largest weight of 7 · 2^k, x / d is halfway between two levels, while
# x · (1/d) is less in fp32, whether or not the product is rounded before 8.5 is added.
LESS_WITH_A_RECIPROCAL = (-5.5, -6.5, -7.5)


def block_of(largest: float, **kind: bool) -> dict[str, Any]:
    """``largest``: the weight of largest magnitude; ``kind``: see `draw_block`."""
    return {"largest": largest, **kind}


def blocks_case(name: str, *blocks: dict[str, Any]) -> Case:
    return Case(name, 1, {"blocks": blocks})


def draw_inputs(case: Case, rng: np.random.Generator) -> Plain:
    blocks = [draw_block(rng, **each) for each in case.params["blocks"]]
    return {"weights": torch.cat(blocks)}


def draw_block(
    rng: np.random.Generator,
    largest: float,
    opposite: bool = False,
    halfway: bool = False,
    reciprocal: bool = False,
) -> torch.Tensor:
    """Weights near levels, up to the largest magnitude, but never almost halfway between two
    levels, where rounding decides.

    ``opposite``: a later weight is the negative of the largest.  ``halfway``: the others are
    halfway between two levels; ``largest`` must then be a power of two.  ``reciprocal``: their
    levels are of LESS_WITH_A_RECIPROCAL; ``largest`` must then be 7 · 2^k.
    """
    scale = np.float32(largest if halfway or reciprocal else largest * rng.uniform(0.8, 1.25))
    offset = 0.5 if halfway else rng.uniform(-0.49, 0.49, BLOCK)
    levels = np.clip(rng.integers(-8, 9, BLOCK) + offset, -7.9, 7.9)
    if reciprocal:
        levels = rng.choice(LESS_WITH_A_RECIPROCAL, BLOCK)
    weights = torch.from_numpy(scale / -8 * levels + 0.0).float()  # zeros are 0, not -0
    first, later = sorted(rng.choice(BLOCK, 2, replace=False))
    weights[first] = float(scale)
    if opposite:
        weights[later] = -float(scale)
    return weights


def drive(subject: Callable[..., Any], given: Plain, case: Case) -> Plain:
    weights = given["weights"].clone()
    returned = subject(weights)
    return {"blocks": returned, "unchanged": torch.equal(weights, given["weights"])}


@on_each_rank
def changes_weights(output: Any) -> MistakeText:
    if not output["unchanged"]:
        return "changes the caller's weights: multiply a copy of them"
    return None


EXERCISE = OnRanks(
    points=3,
    cases=(
        blocks_case("three blocks", block_of(-1.3), block_of(0.9), block_of(0.04)),
        blocks_case(
            "both signs have the largest magnitude",
            block_of(0.7, opposite=True),
            block_of(-2.1, opposite=True),
        ),
        blocks_case(
            "weights halfway between two levels",
            block_of(-0.25, halfway=True),
            block_of(2.0, halfway=True),
            block_of(7 / 32, reciprocal=True),
        ),
        blocks_case(
            "a block of zeros, and tiny weights",
            block_of(0.0),
            block_of(4e-6),
            block_of(-1.1e-13),
            block_of(0.3),
        ),
    ),
    inputs=draw_inputs,
    drive=drive,
    allows=frozenset(),
    kept_from_ranks=frozenset({"blocks"}),
    rules=(changes_weights,),
)
