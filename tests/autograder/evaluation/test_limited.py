"""What student code returns does not decide how long the checker works."""

from __future__ import annotations

import os
import time

import pytest
import torch

from autograder.evaluation import limited
from autograder.evaluation.judge import TOO_MUCH, judge_within_limits
from autograder.evaluation.limited import is_unusual
from shardlab.ranks.trust import Trust
from tests.autograder.attempts import attempt, call, exercise, run_of

COLUMN = torch.zeros(1 << 14, 1)


@pytest.mark.parametrize(
    ("output", "wanted"),
    [
        (torch.zeros(1000), False),
        (torch.zeros(600_000), True),
        ({"evidence": [COLUMN]}, True),
        ({"evidence": [COLUMN[:100]]}, False),
        ((1, "x" * 2_000_000), True),
    ],
    ids=["usual", "large", "column", "short column", "text"],
)
def test_outputs_unlike_any_correct_one(output: object, wanted: bool) -> None:
    assert is_unusual(attempt(outputs=(1, output))) is wanted


def test_a_correct_output_is_usual_whatever_its_shape() -> None:
    made = attempt(outputs=(1, {"weight": COLUMN}))
    made.expected[1] = {"weight": COLUMN}
    assert not is_unusual(made)
    assert is_unusual(attempt(run=run_of([call("send")] * (limited.MANY_CALLS + 1))))


def test_a_rule_that_takes_long_on_an_odd_output_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limited, "CPU_S", 1)

    def multiplies(attempt):
        while True:
            torch.ones(100) + torch.ones(100, 1)

    odd = attempt(outputs=(1, COLUMN), trust=Trust.UNTRUSTED)
    started_s = time.process_time()
    result = judge_within_limits(exercise(rules=(multiplies,)), odd).result
    assert time.process_time() - started_s < 1
    assert TOO_MUCH in result.mistake
    assert result.violation == "resource limit"
    # otherwise the same verdict as without limits
    result = judge_within_limits(exercise(), odd).result
    assert "should give a number" in result.diagnosis


def test_a_process_that_ends_slowly_after_its_result_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends = os._exit
    monkeypatch.setattr(os, "_exit", lambda code: (time.sleep(0.2), ends(code)))
    assert limited.in_limited_process(lambda: 7) == 7
