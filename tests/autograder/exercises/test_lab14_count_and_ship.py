"""Lab 14's count_and_ship, against shardlab's estimates for a real model; every mistake differs."""

from __future__ import annotations

import pytest

from autograder import exercises
from autograder.evaluation.trial import rng_for
from autograder.exercise import equal
from autograder.exercises.lab14_lora.hidden import count_and_ship as hidden
from shardlab import models
from shardlab.estimate import lora

EXERCISE = next(each for each in exercises.of_lab("14_lora") if each.answer == "count_and_ship")


def test_counts_agree_with_the_estimates_for_a_real_model():
    model = models.separate_projections(models.gpt("0.1M"))
    parameters = model.named_parameters(remove_duplicate=False)
    shapes = {name: tuple(each.shape) for name, each in parameters}
    counted = hidden.right(shapes, 4, ["query", "down"], 3, 100)
    adapters = lora.adapter_parameters(2 * [(64, 64), (64, 256)], 4)
    assert counted["adapters"] == adapters
    assert counted["state_bytes"] == lora.trained_bytes(adapters) - 4 * adapters
    assert counted["sent_bytes"] == pytest.approx(lora.sent_bytes(adapters, 3))
    base = 2 * 12 * 64 * 64 + 256 * 64  # the blocks' matrices and the head
    frozen = lora.training_flops(base, 100, is_frozen=True)
    trained = lora.training_flops(adapters, 100, is_frozen=False)
    assert counted["flops"] == frozen + trained


@pytest.mark.parametrize("message", hidden.MISTAKES)
def test_each_mistake_differs_in_a_visible_case_and_in_a_hidden_one(message):
    found = set()
    for case in EXERCISE.cases:
        inputs = list(EXERCISE.draw(case, rng_for(EXERCISE, case, seed=1)))
        expected = EXERCISE.expect(case, inputs)
        for outputs in EXERCISE.half.outputs_with(message, case, inputs):
            if not equal(expected, outputs, EXERCISE.tolerance):
                found.add(case.hidden)
    assert found == {False, True}
