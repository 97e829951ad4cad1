"""A GPT in pieces, and a backward in two halves, in one process."""

import pytest
import torch
from torch import nn

from shardlab import models
from shardlab.pipeline import cut_gpt
from shardlab.pipeline.late_weights import LateWeights


def a_gpt(layers=5):
    torch.manual_seed(0)
    return models.GPT(models.GPTConfig(layers=layers, heads=2, width=8, context=6))


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
def test_the_pieces_are_the_model(stages):
    model, tokens = a_gpt(), torch.arange(12).view(2, 6)
    pieces = cut_gpt(model, stages)
    x = tokens
    for piece in pieces:
        x = piece(x)
    assert torch.equal(x, model(tokens))
    names = [name for piece in pieces for name, _ in piece.named_parameters()]
    whole = {name for name, _ in model.named_parameters()}
    assert set(names) == whole | ({"head.weight"} if stages > 1 else set())
    assert len(names) == len(set(names))
    blocks = [len(piece.blocks) for piece in pieces]
    assert max(blocks) - min(blocks) <= 1


def test_there_is_no_stage_without_a_block():
    for stages in (0, 6):
        with pytest.raises(ValueError, match=f"{stages} stages of a model of 5 blocks: 1 to 5"):
            cut_gpt(a_gpt(), stages)


def test_weights_get_their_gradients_later():
    """Also one that is used twice, one without bias, and one whose input needs no gradient."""
    once, twice = nn.Linear(3, 4), nn.Linear(4, 4, bias=False)
    module = nn.Sequential(once, nn.GELU(), twice, twice)
    given = torch.randn(2, 5, 3)
    for needs_grad in (True, False):
        x = given.clone().requires_grad_(needs_grad)
        module.zero_grad()
        module(x).square().sum().backward()
        expected = [x.grad, *(p.grad.clone() for p in module.parameters())]
        module.zero_grad()
        x = given.clone().requires_grad_(needs_grad)
        with LateWeights() as late:
            y = module(x)
        y.square().sum().backward()
        assert once.weight.grad is twice.weight.grad is None
        torch.testing.assert_close(x.grad, expected[0])
        torch.testing.assert_close(once.bias.grad, expected[2])
        late.finish()
        assert not late.later
        torch.testing.assert_close([p.grad for p in module.parameters()], expected[1:])


def test_frozen_weights_and_no_grad_stay_as_they_are():
    frozen = nn.Linear(3, 3).requires_grad_(False)
    x = torch.randn(2, 3, requires_grad=True)
    with LateWeights() as late:
        frozen(x).sum().backward()
        with torch.no_grad():
            nn.Linear(3, 3)(x)
    assert not late.later
    assert x.grad is not None
