"""LoRA's counts match the paper; its bytes and operations match a real model."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from shardlab.estimate import lora

GPT_3_QUERIES_AND_VALUES = [(12288, 12288)] * 2 * 96  # W_q and W_v of 96 layers


@pytest.mark.parametrize(
    ("r", "parameters"), [(1, 4_718_592), (2, 9.44e6), (4, 18.87e6), (8, 37.75e6), (64, 302e6)]
)
def test_adapters_of_gpt_3(r, parameters):
    """Hu et al., table 4, prints 4.7M for r = 1 and 37.7M for r = 8."""
    assert lora.adapter_parameters(GPT_3_QUERIES_AND_VALUES, r) == pytest.approx(
        parameters, rel=1e-3
    )


def test_the_checkpoint_of_gpt_3s_adapters():
    """Section 4.2: 10,000 times smaller with r = 4 in fp16, from 350 GB to 35 MB (rounded)."""
    parameters = lora.adapter_parameters(GPT_3_QUERIES_AND_VALUES, 4)
    assert 2 * parameters == pytest.approx(35e6, rel=0.1)
    assert 350e9 / (2 * parameters) == pytest.approx(10_000, rel=0.1)


def test_each_rank_sends_only_adapters():
    assert lora.sent_bytes(1000, 4) == 2 * 3 / 4 * 4000
    assert lora.trained_bytes(1000) == 16_000


def test_frozen_weights_save_a_third_of_the_operations():
    """Counted by PyTorch. x requires a gradient, as if another layer preceded the model."""
    width, layers, tokens = 32, 3, 8

    def counted(is_frozen: bool) -> int:
        model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers)))
        model.requires_grad_(not is_frozen)
        x = torch.randn(tokens, width, requires_grad=True)
        with FlopCounterMode(display=False) as counter:
            model(x).sum().backward()
        return counter.get_total_flops()

    for is_frozen in (False, True):
        expected = lora.training_flops(layers * width**2, tokens, is_frozen)
        assert counted(is_frozen) == expected


def test_a_rank_of_0_raises():
    with pytest.raises(ValueError, match="at least 1"):
        lora.adapter_parameters([(4, 4)], 0)
