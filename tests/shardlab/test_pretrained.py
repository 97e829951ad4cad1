"""The trained model: better on its own text than on another one, and worth quantizing."""

import torch

from shardlab import data, models, pretrained


@torch.no_grad()
def loss_on(model: models.GPT, text: str) -> float:
    return model(*data.batch(0, 16, 128, text=text)).item()


def test_it_has_learned_the_documentation_and_knows_code_less_well():
    model = pretrained.gpt()
    documentation, code = loss_on(model, "documentation"), loss_on(model, "code")
    assert documentation < 1.6
    assert documentation + 0.5 < code < 4


def test_its_matrices_are_those_of_its_configuration():
    state = pretrained.gpt().state_dict()
    assert {name: value.shape for name, value in state.items()} == {
        name: value.shape for name, value in models.GPT(pretrained.CONFIG).state_dict().items()
    }
    assert all(value.dtype == torch.float32 for value in state.values())
