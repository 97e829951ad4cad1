from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab12_lora_quantization.pack_q4_0 import BLOCK, block_of

CASES = (
    Case(
        "many blocks",
        1,
        {"blocks": [block_of(*each) for each in product((0.02, -0.02), (True, False))] * 6},
    ),
    Case(
        "every kind of block",
        1,
        {
            "blocks": [
                block_of(-0.6),
                block_of(0.0),
                block_of(-0.5, halfway=True, opposite=True),
                block_of(-2e-6),
                block_of(3e-8),
                block_of(41.0),
            ]
        },
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
OfBoth = Callable[[Tensor, Tensor], Tensor]


def signed_largest(blocks: Tensor) -> Tensor:
    """[blocks, 32]  ->  [blocks, 1]: the first weight with the largest magnitude."""
    return blocks.gather(1, blocks.abs().argmax(dim=1, keepdim=True))


def scale_of(blocks: Tensor) -> Tensor:
    return signed_largest(blocks) / -8


def fp16_bytes(scale: Tensor) -> Tensor:
    return scale.half().view(torch.uint8)


def steps_from_zero(blocks: Tensor, scale: Tensor) -> Tensor:
    """x · (1/d) as in gguf.quants.Q4_0; 0 for a block of zeros."""
    return blocks * torch.where(scale == 0, 0.0, 1 / scale)


def quotients(blocks: Tensor, scale: Tensor) -> Tensor:
    return torch.where(scale == 0, 0.0, blocks / scale)


def levels_of(steps: Tensor) -> Tensor:
    return torch.floor(steps + 8.5).clamp(max=15)


def halves(levels: Tensor) -> Tensor:
    low, high = levels.to(torch.uint8).split(BLOCK // 2, dim=1)
    return low + 16 * high


def reference(case: Case, inputs: Any) -> Plain:
    return packed()(case, inputs)


def packed(
    scale: Of = scale_of,
    stored: Of = fp16_bytes,
    used: Of = lambda scale: scale,
    levels: Of = levels_of,
    nibbles: Of = halves,
    scale_first: bool = True,
    steps: OfBoth = steps_from_zero,
) -> Callable[[Case, Any], Plain]:
    """``used``: the scale that weights are divided by."""

    def blocks(case: Case, inputs: Any) -> Plain:
        weights = inputs[0]["weights"].view(-1, BLOCK)
        found = scale(weights)
        parts = stored(found), nibbles(levels(steps(weights, used(found))))
        return {"blocks": torch.cat(parts if scale_first else parts[::-1], dim=1)}

    return blocks


def largest_or_smallest(blocks: Tensor, ties: str) -> Tensor:
    largest, smallest = blocks.amax(1, keepdim=True), blocks.amin(1, keepdim=True)
    is_largest = largest > -smallest if ties == "negative" else largest >= -smallest
    return torch.where(is_largest, largest, smallest)


def last_largest(blocks: Tensor) -> Tensor:
    return signed_largest(blocks.flip(1))


def magnitude(blocks: Tensor) -> Tensor:
    return blocks.abs().amax(1, keepdim=True)


def neighbors(levels: Tensor) -> Tensor:
    pairs = levels.to(torch.uint8).view(len(levels), -1, 2)
    return pairs[..., 0] + 16 * pairs[..., 1]


def neighbors_swapped(levels: Tensor) -> Tensor:
    pairs = levels.to(torch.uint8).view(len(levels), -1, 2)
    return pairs[..., 1] + 16 * pairs[..., 0]


def halves_swapped(levels: Tensor) -> Tensor:
    return halves(levels.roll(BLOCK // 2, dims=1))


def one_byte_each(levels: Tensor) -> Tensor:
    return levels.to(torch.uint8)


def not_shifted(levels: Tensor) -> Tensor:
    low, high = levels.to(torch.uint8).split(BLOCK // 2, dim=1)
    return low | high


def bits_joined(levels: Tensor) -> Tensor:
    """With ``|``, where a level of 16 sets a bit of the neighbor."""
    low, high = levels.to(torch.uint8).split(BLOCK // 2, dim=1)
    return low | high << 4


def not_clipped(steps: Tensor) -> Tensor:
    return torch.floor(steps + 8.5)


def to_nearest(steps: Tensor) -> Tensor:
    return (torch.round(steps) + 8).clamp(0, 15)


def sevenths(blocks: Tensor) -> Tensor:
    return magnitude(blocks) / 7


def without_a_guard(case: Case, inputs: Any) -> Plain:
    """0 · (1/0) is NaN, which becomes level 0."""
    blocks = reference(case, inputs)["blocks"].clone()
    blocks[scale_of(inputs[0]["weights"].view(-1, BLOCK)).flatten() == 0, 2:] = 0
    return {"blocks": blocks}


SIGN = (
    "loses the sign of the weight of largest magnitude: d is that weight / -8, so it may be "
    "negative"
)
# If two mistakes agree in a case, the one that is correct in more cases comes first.
MISTAKES = {
    "does not take the first of two weights with the largest magnitude": (
        packed(scale=lambda blocks: largest_or_smallest(blocks, "negative") / -8),
        packed(scale=lambda blocks: largest_or_smallest(blocks, "positive") / -8),
        packed(scale=lambda blocks: last_largest(blocks) / -8),
    ),
    "rounds halfway cases to even: add 8.5 and cut off the fraction": packed(levels=to_nearest),
    f"divides a magnitude by 7: {SIGN}": (
        packed(scale=sevenths),
        packed(scale=sevenths, levels=to_nearest),
        packed(scale=sevenths, levels=lambda steps: not_clipped(steps).clamp(1, 15)),
    ),
    SIGN: (
        packed(scale=lambda blocks: magnitude(blocks) / 8),
        packed(scale=lambda blocks: magnitude(blocks) / -8),
    ),
    "has the wrong sign of d: it is the weight of largest magnitude / -8": packed(
        scale=lambda blocks: signed_largest(blocks) / 8
    ),
    "takes the largest weight, not the one of largest magnitude": packed(
        scale=lambda blocks: blocks.amax(1, keepdim=True) / -8
    ),
    "swaps the nibbles: the low one, of value 1, 2, 4 and 8, has weight j": packed(
        nibbles=halves_swapped
    ),
    "packs neighbors into a byte: byte j has the weights j and j + 16": (
        packed(nibbles=neighbors),
        packed(nibbles=neighbors_swapped),
    ),
    "does not shift the second level: it belongs in the high 4 bits": (
        packed(nibbles=not_shifted),
        packed(nibbles=lambda levels: sum(levels.to(torch.uint8).split(BLOCK // 2, dim=1))),
    ),
    "uses a byte for each level: two levels share one": packed(nibbles=one_byte_each),
    "stores d in fp32, 4 bytes: it has 2 bytes, in fp16": packed(
        stored=lambda scale: scale.view(torch.uint8)
    ),
    "stores d in bf16: it is fp16": packed(stored=lambda scale: scale.bfloat16().view(torch.uint8)),
    "swaps the two bytes of d": packed(stored=lambda scale: fp16_bytes(scale).flip(1)),
    "puts d after the levels: it comes first": packed(scale_first=False),
    "does not clip: a level of 16 has no place in 4 bits": (
        packed(levels=not_clipped),
        packed(levels=not_clipped, nibbles=bits_joined),
        packed(levels=lambda steps: not_clipped(steps) % 16),
    ),
    "divides by d after rounding it to fp16: levels are computed with the fp32 d": (
        packed(used=lambda scale: scale.half().float()),
        packed(used=lambda scale: scale.half().float(), levels=to_nearest),
    ),
    "divides by d: multiply by 1/d as gguf does, since x / d can have another level": packed(
        steps=quotients
    ),
    "cuts off the fraction without adding a half first": (
        packed(levels=lambda steps: torch.floor(steps + 8).clamp(0, 15)),
        packed(levels=lambda steps: (torch.trunc(steps) + 8).clamp(0, 15)),
    ),
    "divides by 0 in a block of zeros: use 0 instead of 1/d": without_a_guard,
    "stores 0 as d of a block of zeros: 0 / -8 is -0": packed(
        stored=lambda scale: fp16_bytes(scale + 0.0)
    ),
    "keeps levels from -8 to 7: add 8": (
        packed(levels=lambda steps: (torch.floor(steps + 0.5).clamp(max=7)) % 16),
        packed(levels=lambda steps: (torch.round(steps).clamp(max=7)) % 16),
    ),
}
