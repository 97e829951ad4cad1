"""Ridges and thresholds match published numbers."""

import math

import pytest

from shardlab.estimate import roofline
from shardlab.estimate.roofline import Roofline

H100 = Roofline(flops_per_s=990e12, memory_bytes_per_s=3.35e12)


def test_below_the_ridge_memory_sets_the_time():
    assert pytest.approx(295.5, abs=0.1) == H100.ridge
    assert H100.seconds(100, 100 / H100.ridge * 2) == 200 / H100.ridge / 3.35e12
    assert H100.seconds(990e12, 1) == 1
    assert H100.attainable_flops_per_s(H100.ridge / 4) == pytest.approx(990e12 / 4)
    assert H100.attainable_flops_per_s(1e9) == 990e12


def test_a_product_with_few_rows_is_bound_by_memory():
    """One token's product does one operation for each byte of a 16-bit weight."""
    assert roofline.product_intensity(1, 4096, 4096) == pytest.approx(1, rel=1e-3)
    assert roofline.product_intensity(4096, 4096, 4096) == 4096 / 3
    assert roofline.product_flops(2, 3, 4) == 48


@pytest.mark.parametrize(
    ("sent_bytes_per_s", "tokens"), [(450e9, 2200), (400e9, 2475)], ids=["NVLink", "between nodes"]
)
def test_tokens_for_data_parallelism_on_h100(sent_bytes_per_s, tokens):
    """How to Scale Your Model, part 12. Between nodes, 8 GPUs share 400 GB/s and each sends an
    eighth of what leaves the node."""
    assert roofline.data_parallel_tokens(990e12, sent_bytes_per_s) == tokens
    assert roofline.data_parallel_tokens(990e12, sent_bytes_per_s, ranks=2) == tokens / 2


def test_ranks_for_tensor_parallelism_on_h100():
    """How to Scale Your Model, part 12: F / 2,475 between nodes; LLaMA 3's F is 28,672 (70B)."""
    assert roofline.tensor_parallel_ranks(28_672, 990e12, 400e9) == 28_672 / 2475
    assert math.floor(roofline.tensor_parallel_ranks(28_672, 990e12, 450e9)) == 13


@pytest.mark.parametrize(
    ("flops_per_s", "sent_bytes_per_s", "tokens"),
    [
        (312e12, 300e9, 1.0e3),
        (312e12, 12.5e9, 24.5e3),
        (123e12, 112e9, 1.1e3),
        (275e12, 268e9, 1.0e3),
        (196e12, 186e9, 1.1e3),
    ],
    ids=["A100 NVLink", "A100 InfiniBand", "TPU v3", "TPU v4", "TPU v5e"],
)
def test_blocks_of_ring_attention(flops_per_s, sent_bytes_per_s, tokens):
    """Liu et al., table 2, in thousands of tokens."""
    computed = roofline.ring_attention_tokens(flops_per_s, sent_bytes_per_s)
    assert computed == pytest.approx(tokens, rel=0.05)


def test_impossible_numbers_raise():
    with pytest.raises(ValueError, match="above 0"):
        Roofline(0, 1)
    with pytest.raises(ValueError, match="above 0"):
        roofline.data_parallel_tokens(1, 0)
