"""The pretrained model: its loss is lower on its training text than on code."""

import torch

from shardlab import data, models
from shardlab.models import pretrained


@torch.no_grad()
def loss_on(model: models.GPT, text: str) -> float:
    return model(*data.batch(0, 16, 128, text=text)).item()


def test_its_loss_is_lower_on_documentation_than_on_code():
    model = pretrained.gpt()
    documentation, code = loss_on(model, "documentation"), loss_on(model, "code")
    assert documentation < 1.6
    assert documentation + 0.5 < code < 4


def test_its_parameters_match_its_configuration():
    state = pretrained.gpt().state_dict()
    assert {name: value.shape for name, value in state.items()} == {
        name: value.shape for name, value in models.GPT(pretrained.CONFIG).state_dict().items()
    }
    assert all(value.dtype == torch.float32 for value in state.values())
