"""Lab 12's configurations: recorded runs against fresh ones, and the rules that the task states."""

from __future__ import annotations

import json

import pytest

from autograder import exercises
from autograder.evaluation.judge import judge
from autograder.evaluation.trial import rng_for
from autograder.exercise import Attempt, equal
from autograder.exercises.lab12_deepspeed.hidden import config_lint as hidden
from autograder.exercises.lab12_deepspeed.hidden import record_configs
from shardlab import launch
from shardlab.recorded_runs import config_runs

EXERCISE = next(each for each in exercises.of_lab("12_deepspeed") if each.answer == "config_lint")
RUNS = config_runs.load() | hidden.RECORDED


@pytest.mark.ranks
@pytest.mark.parametrize("name", ["A", "B"])
def test_a_fresh_run_matches_the_recorded_one(name):
    """A: on the ranks of two machines, as Accelerate's launcher counts them."""
    asked, ran = RUNS[name]
    assert record_configs.record(asked) == ran


def test_no_two_configurations_are_equal():
    assert len({json.dumps(asked) for asked, _ in RUNS.values()}) == len(RUNS)


def outputs_of(case):
    inputs = list(EXERCISE.draw(case, rng_for(EXERCISE, case, seed=1)))
    return inputs, EXERCISE.expect(case, inputs)


@pytest.mark.parametrize("message", hidden.MISTAKES)
def test_each_mistake_is_named_in_a_visible_case_and_in_a_hidden_one(message):
    found = set()
    for case in EXERCISE.cases:
        inputs, expected = outputs_of(case)
        for outputs in EXERCISE.half.outputs_with(message, case, inputs):
            if not equal(outputs, expected, EXERCISE.tolerance):
                attempt = Attempt(case, inputs, expected, outputs, None, None)
                if message in judge(EXERCISE, attempt).result.diagnosis:
                    found.add(case.hidden)
    assert found == {False, True}


def rejections():
    """DeepSpeed's errors for a key in the wrong section and for a file with duplicate keys."""
    import tempfile

    import deepspeed

    misplaced = {"train_batch_size": 1, "zero_optimization": {"gradient_clipping": 0.5}}
    messages = []
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write('{"train_batch_size": 1, "train_batch_size": 1}')
        file.flush()
        for config in (misplaced, file.name):
            try:
                deepspeed.DeepSpeedConfig(config)
            except ValueError as error:
                messages.append(str(error))
    return messages


@pytest.mark.ranks
def test_deepspeed_rejects_what_the_task_says_it_rejects():
    extra, repeated = launch(rejections, world_size=1, device="cpu").outputs[0]
    assert "Extra inputs are not permitted" in extra
    assert "Duplicate keys in DeepSpeed config: ['train_batch_size']" in repeated
