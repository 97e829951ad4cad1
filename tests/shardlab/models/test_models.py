"""The GPT has the stated sizes, learns, and is causal."""

import pytest
import torch

from shardlab import data, models


@pytest.mark.parametrize("size", models.SIZES)
def test_each_size_has_about_the_number_of_parameters_in_its_name(size):
    with torch.device("meta"):
        parameters = models.count_parameters(models.gpt(size))
    assert parameters == pytest.approx(float(size.removesuffix("M")) * 1e6, rel=0.25)


def test_the_parameter_count_matches_the_formula():
    # Narayanan et al. (arXiv 2104.04473), section 2: 12·l·h²·(1 + 13/(12h) + (V + s)/(12·l·h)),
    # plus the last layer norm, 2h, which it leaves out
    config = models.GPTConfig(layers=3, heads=2, width=32, context=40, vocabulary=100)
    layers, width, vocabulary, context = 3, 32, 100, 40
    formula = 12 * layers * width**2
    formula *= 1 + 13 / (12 * width) + (vocabulary + context) / (12 * layers * width)
    assert models.count_parameters(models.GPT(config)) == round(formula) + 2 * width


def test_embedding_and_output_share_one_matrix():
    model = models.gpt("0.1M")
    assert model.head.weight is model.token.weight


def test_attention_is_causal():
    torch.manual_seed(0)
    model = models.gpt("0.1M")
    tokens, _ = data.batch(0, batch_size=2, context=16)
    changed = tokens.clone()
    changed[:, 10:] = 65
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10:], after[:, 10:])


def test_separate_projections_give_the_same_output_and_gradient():
    torch.manual_seed(0)
    model = models.gpt("0.1M")
    tokens, targets = data.batch(0, batch_size=2, context=16)
    fused = model(tokens, targets)
    fused.backward()
    weight = model.blocks[0].attention.qkv.weight.grad
    parameters = models.count_parameters(model)
    separate = models.separate_projections(model)(tokens, targets)
    torch.testing.assert_close(separate, fused)
    separate.backward()
    attention = model.blocks[0].attention
    parts = [part.weight.grad for part in (attention.query, attention.key, attention.value)]
    torch.testing.assert_close(torch.cat(parts), weight)
    assert models.count_parameters(model) == parameters


def test_targets_of_minus_100_are_ignored():
    torch.manual_seed(0)
    model = models.gpt("0.1M")
    tokens, targets = data.batch(0, batch_size=2, context=16)
    masked = targets.clone()
    masked[1] = models.IGNORE
    torch.testing.assert_close(model(tokens, masked), model(tokens[:1], targets[:1]))


def test_a_hundred_steps_lower_the_loss():
    torch.manual_seed(0)
    model = models.gpt("0.3M")
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for step in range(100):
        loss = model(*data.batch(step, batch_size=8, context=32))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 5.4  # ln 256 = 5.5: a uniform guess
    assert sum(losses[-10:]) / 10 < 3.3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: models.gpt("7B"), "there is no size '7B': choose one of 0.1M"),
        (lambda: models.GPTConfig(1, 3, 64, 8), "3 heads do not divide a width of 64"),
        (
            lambda: models.gpt("0.1M")(torch.zeros(1, 65, dtype=torch.int64)),
            "65 tokens do not fit in a context of 64",
        ),
    ],
)
def test_invalid_arguments_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call()
