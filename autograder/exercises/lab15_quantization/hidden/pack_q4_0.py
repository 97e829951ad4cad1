from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab15_quantization.pack_q4_0 import BLOCK, block_of, blocks_case

CASES = (
    blocks_case(
        "many blocks",
        *[block_of(x, opposite=each) for x in (0.02, -0.02) for each in (True, False)] * 6,
    ),
    blocks_case(
        "every kind of block",
        block_of(-0.6),
        block_of(0.0),
        block_of(-0.5, halfway=True, opposite=True),
        block_of(-2e-6),
        block_of(3e-14),
        block_of(41.0),
    ),
)
BOUNDARIES = {
    "divides": "three blocks",
    "does not divide": "not tested: GGUF quantizes whole blocks only",
    "one rank": "three blocks",
    "more ranks than elements": "not tested: nothing is divided among ranks",
    "a block of zeros": "a block of zeros, and tiny weights",
    "d is subnormal in fp16, or 0": "a block of zeros, and tiny weights",
    "two weights have the largest magnitude": "both signs have the largest magnitude",
    "a level above 15": "both signs have the largest magnitude",
    "halfway between two levels": "weights halfway between two levels",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "d == 0, 0.0, 1 / d", "d == 0, 1.0, 1 / d", "a block of zeros, whatever multiplies it"
    ),
)

Of = Callable[[Tensor], Tensor]


def largest(blocks: Tensor) -> Tensor:
    """[blocks, 32]  ->  [blocks, 1]: the first weight with the largest magnitude."""
    return blocks.gather(1, blocks.abs().argmax(dim=1, keepdim=True))


def times_reciprocal(blocks: Tensor, scale: Tensor) -> Tensor:
    """x · (1/d) as in gguf.quants.Q4_0; 0 for a block of zeros."""
    return blocks * torch.where(scale == 0, 0.0, 1 / scale)


def not_clipped(steps: Tensor) -> Tensor:
    return torch.trunc(steps + 8.5)  # as gguf does: with a rounded d it may be below 0


def halves(levels: Tensor) -> Tensor:
    low, high = levels.split(BLOCK // 2, dim=1)
    return low | high << 4


def packed(
    scale: Of = lambda blocks: largest(blocks) / -8,
    used: Of = lambda scale: scale,
    steps: Callable[[Tensor, Tensor], Tensor] = times_reciprocal,
    levels: Of = lambda steps: not_clipped(steps).clamp(max=15),
    nibbles: Of = halves,
) -> Callable[[Case, Any], Plain]:
    """``used``: the scale that weights are divided by."""

    def blocks(case: Case, inputs: Any) -> Plain:
        weights = inputs[0]["weights"].view(-1, BLOCK)
        found = scale(weights)
        codes = nibbles(levels(steps(weights, used(found))).to(torch.uint8))
        return {"blocks": torch.cat([found.half().view(torch.uint8), codes], dim=1)}

    return blocks


def reference(case: Case, inputs: Any) -> Plain:
    return packed()(case, inputs)


def largest_or_smallest(blocks: Tensor, negative_first: bool) -> Tensor:
    largest, smallest = blocks.amax(1, keepdim=True), blocks.amin(1, keepdim=True)
    is_largest = largest > -smallest if negative_first else largest >= -smallest
    return torch.where(is_largest, largest, smallest)


def magnitude(blocks: Tensor) -> Tensor:
    return blocks.abs().amax(1, keepdim=True)


def to_nearest(steps: Tensor) -> Tensor:
    return (torch.round(steps) + 8).clamp(0, 15)


def plus_8(steps: Tensor) -> Tensor:
    return torch.floor(steps + 8).clamp(0, 15)


def fp16(scale: Tensor) -> Tensor:
    return scale.half().float()


# If two mistakes agree in a case, the one that is correct in more cases comes first.
MISTAKES = {
    "does not take the first of two weights with the largest magnitude": (
        packed(scale=lambda blocks: largest_or_smallest(blocks, negative_first=True) / -8),
        packed(scale=lambda blocks: largest_or_smallest(blocks, negative_first=False) / -8),
        packed(scale=lambda blocks: largest(blocks.flip(1)) / -8),
    ),
    "multiplies a block of zeros by 1 / 0: use 0 instead": packed(
        steps=lambda blocks, scale: blocks * (1 / scale)
    ),
    "rounds in another way: add 8.5 and cut off the fraction": (
        packed(levels=to_nearest),
        packed(levels=plus_8),
    ),
    "takes the largest weight, which may not have the largest magnitude": packed(
        scale=lambda blocks: blocks.amax(1, keepdim=True) / -8
    ),
    "loses the sign of the weight of largest magnitude: d is that weight / -8, so it may be "
    "negative": (
        packed(scale=lambda blocks: magnitude(blocks) / 7),
        packed(scale=lambda blocks: magnitude(blocks) / 7, levels=to_nearest),
        packed(scale=lambda blocks: magnitude(blocks) / 8),
        packed(scale=lambda blocks: magnitude(blocks) / -8),
    ),
    "packs other weights into a byte: byte j has weight j in its low 4 bits and weight j + 16 in "
    "its high 4": (
        packed(nibbles=lambda levels: halves(levels.roll(BLOCK // 2, dims=1))),
        packed(nibbles=lambda levels: levels[:, ::2] | levels[:, 1::2] << 4),
        packed(nibbles=lambda levels: levels[:, 1::2] | levels[:, ::2] << 4),
    ),
    "does not clip: a level of 16 has no place in 4 bits": packed(levels=not_clipped),
    "divides by d after rounding it to fp16: levels are computed with the fp32 d": (
        packed(used=fp16),
        packed(used=fp16, levels=to_nearest),
    ),
    "does not multiply by 1/d in fp32 as gguf does: x / d or fp64 can give another level": packed(
        steps=lambda blocks, scale: torch.where(scale == 0, 0.0, blocks / scale)
    ),
}
