"""Bits per weight match QLoRA's figures and GGUF's table; NF4's values match bitsandbytes."""

import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from shardlab.estimate import quantization
from shardlab.estimate.quantization import FORMATS

# As in bitsandbytes.
NF4 = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
]  # fmt: skip


def test_nf4_code_points():
    assert quantization.nf4_code_points() == pytest.approx(NF4, abs=1e-6)


@pytest.mark.parametrize("name", [name for name in FORMATS if name.startswith("Q")])
def test_blocks_have_the_size_of_ggufs_blocks(name):
    expected = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    assert (FORMATS[name].block, FORMATS[name].block_bytes) == expected


def test_double_quantization_saves_what_the_paper_says():
    """Section 3: scales take 0.5 bits per weight, and 8/64 + 32/(64 · 256) = 0.127 with double
    quantization; 0.373 bits less, "approximately 3 GB for a 65B model"."""
    once, twice = FORMATS["nf4"], FORMATS["nf4, double quantization"]
    assert once.bits_per_weight == 4.5
    assert twice.bits_per_weight == pytest.approx(4.127, abs=5e-4)
    saved = once.bytes_of(65e9) - twice.bytes_of(65e9)
    assert saved == pytest.approx(3.03e9, rel=0.005)


def test_a_last_block_is_padded():
    assert FORMATS["Q4_0"].bytes_of(33) == 36
    assert FORMATS["int8"].bytes_of(64) == 68
