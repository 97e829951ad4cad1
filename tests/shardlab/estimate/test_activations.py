"""The activation formulas match the paper's table and what our GPT actually saves for backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from shardlab import data, models
from shardlab.estimate import activations
from shardlab.estimate.activations import (
    PAPER,
    Kernels,
    cpu_kernels,
    gpt_terms,
    layer_bytes,
    layer_terms,
    outer_terms,
    small_terms,
)

# Korthikanti et al., arXiv 2205.05198, table 3: GPT-3 and MT-NLG.
GPT_175B = {"heads": 96, "width": 12288, "tokens": 2048, "batch": 1}
GPT_530B = {"heads": 128, "width": 20480, "tokens": 2048, "batch": 1}
TP_AND_SP = {"tensor_parallel": 8, "sequence_parallel": True}


@pytest.mark.parametrize("shape", [GPT_175B, GPT_530B])
@pytest.mark.parametrize("t", [1, 8])
def test_the_papers_table(shape, t):
    """Table 2, row by row, with its own formulas."""
    s, b, h, a = (shape[name] for name in ("tokens", "batch", "width", "heads"))
    sbh = s * b * h
    tp, sp = {"tensor_parallel": t}, {"tensor_parallel": t, "sequence_parallel": True}
    rows = {
        sbh * (34 + 5 * a * s / h): {},
        sbh * (10 + 24 / t + 5 * a * s / (h * t)): tp,
        sbh * (34 / t + 5 * a * s / (h * t)): sp,
        sbh * (10 + 24 / t): {**tp, "recompute": "selective"},
        sbh * 34 / t: {**sp, "recompute": "selective"},
        sbh * 2: {**tp, "recompute": "full"},
        sbh * 2 / t: {**tp, "recompute": "partitioned"},
    }
    for published, variant in rows.items():
        assert layer_bytes(**shape, **variant) == pytest.approx(published)


def test_175b_in_gib():
    """The paper's formulas for all 96 layers, as computed in ground-truth.md."""
    variants = [
        {},
        {"tensor_parallel": 8},
        TP_AND_SP,
        {**TP_AND_SP, "recompute": "selective"},
        {"tensor_parallel": 8, "recompute": "full"},
    ]
    gib = [96 * layer_bytes(**GPT_175B, **variant) / 2**30 for variant in variants]
    assert gib == pytest.approx([256.5, 51.75, 32.06, 9.56, 4.5], abs=0.005)
    assert gib[1] / gib[3] == pytest.approx(5, rel=0.1)  # published: "reduces … by 5x"


@pytest.mark.parametrize(("shape", "ratio", "published"), [(GPT_175B, 80, 70), (GPT_530B, 64, 65)])
def test_memory_saved_by_selective_recomputation(shape, ratio, published):
    """Section 5: "5as/h = 80 … 70 %" for GPT-3, "64 … 65 %" for MT-NLG."""
    assert 5 * shape["heads"] * shape["tokens"] / shape["width"] == ratio
    whole, selective = (layer_bytes(**shape, recompute=mode) for mode in ("none", "selective"))
    assert round(100 * (1 - selective / whole)) == published


def test_activations_outside_the_layers():
    """Section 4.3: sbh/t for the embedding's mask, 4sbh/t · (1 + v/h) for norm, output and loss."""
    s, b, h, v, t = 2048, 4, 6144, 51200, 8
    outer = sum(outer_terms(s, b, h, v, tensor_parallel=t).values())
    assert outer == pytest.approx(s * b * h / t + 4 * s * b * h / t * (1 + v / h))
    without = outer_terms(s, b, h, v, kernels=Kernels(dropout=False))
    assert [name for name in without if "mask" in name] == []


def test_terms_of_a_layer_by_hand():
    """8 tokens of width 4, two heads: sbh = 32, scores a·s² = 128."""
    terms = layer_terms(8, 1, 4, 2)
    assert terms == {
        "inputs of both layer norms": 128,
        "input of qkv": 64,
        "queries, keys, values": 192,
        "softmax": 256,
        "mask of the scores' dropout": 128,
        "scores after dropout": 256,
        "input of the attention's output": 64,
        "input of mlp.up": 64,
        "input of GELU": 256,
        "input of mlp.down": 256,
        "masks of the residual dropouts": 64,
    }
    fused = layer_bytes(8, 1, 4, 2, kernels=Kernels(fused_attention=True))
    assert fused == layer_bytes(8, 1, 4, 2, recompute="selective")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tensor_parallel": 7}, "tensor_parallel=7 does not divide"),
        ({"recompute": "some"}, "one of none, selective, full, partitioned"),
        ({"batch": 0}, "batch=0: expected a whole number"),
    ],
)
def test_invalid_arguments_raise(wrong, message):
    with pytest.raises(ValueError, match=message):
        layer_bytes(**{**GPT_175B, **wrong})


def saved_bytes(model: nn.Module, forward: Callable[[], Tensor]) -> int:
    """Bytes of the storages saved for backward, without parameters."""
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    kept = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        forward()
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("size", ["0.1M", "1M"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_our_gpt_within_5_percent_and_exactly_with_small_terms(size, dtype, dropout):
    config = replace(models.SIZES[size], dropout=dropout)
    model = models.GPT(config).to(dtype)
    for batch, tokens in ((2, 64), (3, 32)):
        inputs = data.batch(0, batch, tokens)
        measured = saved_bytes(model, lambda inputs=inputs: model(*inputs))
        kernels = cpu_kernels(dtype.itemsize, dropout > 0)
        counted = sum(gpt_terms(config, batch, tokens, kernels).values())
        assert counted == pytest.approx(measured, rel=0.05)
        small = sum(small_terms(config, batch, tokens, kernels).values())
        assert counted + small == measured


def test_our_gpt_with_every_block_checkpointed():
    config = replace(models.SIZES["1M"], dropout=0.1)
    model = models.GPT(config)
    for block in model.blocks:
        block.forward = lambda x, whole=block.forward: checkpoint(whole, x, use_reentrant=False)
    inputs = data.batch(0, 2, 64)
    measured = saved_bytes(model, lambda: model(*inputs))
    kernels = cpu_kernels(4, dropout=True)
    counted = sum(gpt_terms(config, 2, 64, kernels, recompute="full").values())
    assert counted == pytest.approx(measured, rel=0.05)
    assert counted + sum(small_terms(config, 2, 64, kernels, recompute="full").values()) == measured


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_one_ranks_shard_of_a_block(dropout):
    """Column-parallel qkv and up, row-parallel out and down, with one rank's shapes."""
    t, batch, tokens = 2, 2, 32
    config = replace(models.SIZES["0.3M"], dropout=dropout)
    block = models.Block(config)
    width = config.width
    block.attention.heads = config.heads // t
    block.attention.qkv = nn.Linear(width, 3 * width // t)
    block.attention.out = nn.Linear(width // t, width)
    block.mlp.up, block.mlp.down = (
        nn.Linear(width, 4 * width // t),
        nn.Linear(4 * width // t, width),
    )
    block.attention.forward = lambda x: _attention_shard(block.attention, x)
    x = torch.randn(batch, tokens, width, requires_grad=True)
    measured = saved_bytes(block, lambda: block(x))
    kernels = cpu_kernels(4, dropout > 0)
    shape = (tokens, batch, width, config.heads)
    assert layer_bytes(*shape, tensor_parallel=t, kernels=kernels) == pytest.approx(
        measured, rel=0.05
    )


def _attention_shard(attention: models.Attention, x: Tensor) -> Tensor:
    """Like models.Attention, but with only this rank's heads."""
    q, k, v = (
        part.unflatten(-1, (attention.heads, -1)).transpose(1, 2)
        for part in attention.qkv(x).chunk(3, dim=-1)
    )
    mixed = nn.functional.scaled_dot_product_attention(
        q, k, v, dropout_p=attention.dropout, is_causal=True
    )
    return attention.out(mixed.transpose(1, 2).flatten(2))


def test_the_papers_kernels_are_the_default():
    assert PAPER == Kernels() == Kernels(2, True, 1, False, None, 4)
    assert set(activations.RECOMPUTE) == {"none", "selective", "full", "partitioned"}
