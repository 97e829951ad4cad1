"""Batches are real text, deterministic, and split across ranks without overlap."""

import pytest
import torch

from shardlab import data


def test_the_text_is_english():
    text = bytes(data.tokens().tolist()).decode()
    assert len(text) > 200_000
    assert " the " in text


def test_the_other_text_is_code():
    code = bytes(data.tokens("code").tolist()).decode()
    assert code.count("\ndef ") > 100
    assert len(code) > 250_000


def test_a_target_is_the_token_that_follows():
    tokens, targets = data.batch(3, batch_size=4, context=32)
    assert tokens.shape == targets.shape == (4, 32)
    assert tokens.dtype == torch.int64
    assert torch.equal(tokens[:, 1:], targets[:, :-1])


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_batches_of_all_ranks_concatenate_to_the_batch_of_one_process(world_size):
    whole, _ = data.batch(5, batch_size=8, context=16)
    shares = [data.batch(5, 8 // world_size, 16, r, world_size)[0] for r in range(world_size)]
    assert torch.equal(torch.cat(shares), whole)


def test_an_epoch_has_no_duplicates_and_the_next_one_a_different_order():
    context, global_batch = 4096, 6
    steps = (len(data.tokens()) - 1) // context // global_batch

    def sequences(first_step):
        rows = [
            data.batch(first_step + step, 3, context, rank, 2)[0]
            for step in range(steps)
            for rank in range(2)
        ]
        return [tuple(row.tolist()) for row in torch.cat(rows)]

    first_epoch, second_epoch = sequences(0), sequences(steps)
    assert len(set(first_epoch)) == len(first_epoch) == steps * global_batch
    assert first_epoch != second_epoch


def test_the_batch_depends_only_on_the_arguments_not_on_the_random_state():
    torch.manual_seed(1)
    first = data.batch(7, 2, 16)[0]
    torch.rand(10)
    assert torch.equal(first, data.batch(7, 2, 16)[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 2, "world_size": 2}, "must be 0 to 1 with world_size=2"),
        ({"batch_size": 0}, "at least 1"),
        ({"batch_size": 10**6}, "the text has"),
        ({"text": "poems"}, "documentation, code"),
    ],
)
def test_invalid_arguments_raise(arguments, message):
    with pytest.raises(ValueError, match=message):
        data.batch(0, **arguments)
