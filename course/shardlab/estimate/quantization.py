"""Bytes of weights in formats of few bits: a code for each weight, and scales for each block.

NF4 in blocks as in bitsandbytes: Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs",
arXiv 2305.14314, section 3.  int8 in the same blocks; LLM.int8() has one scale for a row instead.
Formats in capitals are llama.cpp's, in GGUF files.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

SCALE_BITS = 32  # fp32


@dataclass(frozen=True)
class Format:
    """``block``: weights that share ``block_bytes``, their codes and scales."""

    block: int
    block_bytes: float

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.block_bytes / self.block

    def bytes_of(self, weights: float) -> float:
        """Of whole blocks; a last block that is not full is padded."""
        return -(-weights // self.block) * self.block_bytes


def _blockwise(code_bits: int, block: int, scale_bits: float = SCALE_BITS) -> Format:
    return Format(block, (code_bits * block + scale_bits) / 8)


# Double quantization: each scale is an 8-bit code, in blocks of 256 scales with an fp32 scale.
SCALES_IN_A_BLOCK = 256
DOUBLE_QUANTIZED_BITS = 8 + SCALE_BITS / SCALES_IN_A_BLOCK

FORMATS = {
    "fp32": Format(1, 4),
    "bf16": Format(1, 2),
    "int8": _blockwise(8, 64),
    "nf4": _blockwise(4, 64),
    "nf4, double quantization": _blockwise(4, 64, DOUBLE_QUANTIZED_BITS),
    "Q8_0": Format(32, 34),
    "Q6_K": Format(256, 210),
    "Q5_K": Format(256, 176),
    "Q5_1": Format(32, 24),
    "Q5_0": Format(32, 22),
    "Q4_K": Format(256, 144),
    "Q4_1": Format(32, 20),
    "Q4_0": Format(32, 18),
    "Q3_K": Format(256, 110),
    "Q2_K": Format(256, 84),
}


def nf4_code_points() -> list[float]:
    """The 16 values of NF4, rising from -1 to 1: quantiles of a normal distribution.

    8 of the positive half, 7 of the negative one, and 0, divided by the largest.  The outermost
    lies at the mean of 1 - 1/30 and 1 - 1/32, as in bitsandbytes' `create_normal_map`.
    """
    outermost = 1 - (1 / 30 + 1 / 32) / 2  # as published: 0.9677083
    quantile = NormalDist().inv_cdf

    def half(count: int) -> list[float]:
        """``count`` quantiles at even distances, from the outermost one to the one next to 0."""
        distance = (outermost - 0.5) / count
        return [quantile(outermost - i * distance) for i in range(count)]

    positive, negative = half(8), half(7)
    return [value / positive[0] for value in (*(-each for each in negative), 0, *positive[::-1])]
