"""A GPT split into stages, and a split backward, in one process."""

import pytest
import torch
from torch import nn

from shardlab import models
from shardlab.pipeline import cut_gpt
from shardlab.pipeline.deferred_weights import DeferredWeightGradients


def make_gpt(layers=5):
    torch.manual_seed(0)
    return models.GPT(models.GPTConfig(layers=layers, heads=2, width=8, context=6))


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_the_stages_together_compute_the_model(stages):
    model, tokens = make_gpt(), torch.arange(12).view(2, 6)
    modules = cut_gpt(model, stages)
    x = tokens
    for module in modules:
        x = module(x)
    assert torch.equal(x, model(tokens))
    names = [name for module in modules for name, _ in module.named_parameters()]
    whole = {name for name, _ in model.named_parameters()}
    assert set(names) == whole | ({"head.weight"} if stages > 1 else set())
    assert len(names) == len(set(names))
    blocks = [len(module.blocks) for module in modules]
    assert max(blocks) - min(blocks) <= 1


def test_every_stage_needs_a_block():
    for stages in (0, 6):
        message = f"{stages} stages for a model of 5 blocks: expected 1 to 5"
        with pytest.raises(ValueError, match=message):
            cut_gpt(make_gpt(), stages)


def test_weight_gradients_are_deferred():
    """Also for a weight used twice, one without bias, and one whose input needs no gradient."""
    once, twice = nn.Linear(3, 4), nn.Linear(4, 4, bias=False)
    module = nn.Sequential(once, nn.GELU(), twice, twice)
    data = torch.randn(2, 5, 3)
    for needs_grad in (True, False):
        x = data.clone().requires_grad_(needs_grad)
        module.zero_grad()
        module(x).square().sum().backward()
        expected = [x.grad, *(p.grad.clone() for p in module.parameters())]
        module.zero_grad()
        x = data.clone().requires_grad_(needs_grad)
        with DeferredWeightGradients() as deferred:
            y = module(x)
        y.square().sum().backward()
        assert once.weight.grad is twice.weight.grad is None
        torch.testing.assert_close(x.grad, expected[0])
        torch.testing.assert_close(once.bias.grad, expected[2])
        deferred.finish()
        assert not deferred.pending
        torch.testing.assert_close([p.grad for p in module.parameters()], expected[1:])
        # Without a graph, which would keep the micro-batch's activations.
        assert not any(p.grad.requires_grad for p in module.parameters())


def test_frozen_weights_and_no_grad_are_not_affected():
    frozen = nn.Linear(3, 3).requires_grad_(False)
    x = torch.randn(2, 3, requires_grad=True)
    with DeferredWeightGradients() as deferred:
        frozen(x).sum().backward()
        with torch.no_grad():
            nn.Linear(3, 3)(x)
    assert not deferred.pending
    assert x.grad is not None
