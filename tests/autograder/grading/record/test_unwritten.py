"""Unwritten answers are decided on ranks once for the whole class, not once per student."""

from __future__ import annotations

from typing import Any

import cloudpickle
import pytest

from autograder import exercises
from autograder.evaluation.trial import RankPool
from autograder.evaluation.verdict import Verdict
from autograder.grading.record import grade_submission
from autograder.grading.record.pictures import VisibleAttempts
from shardlab.ranks.trust import Trust
from tests.submissions import planted

EXERCISE = exercises.load("zero.Zero1AdamW")  # a class, which cloudpickle names at random


@pytest.mark.ranks
def test_equal_stubs_are_decided_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = []

    def counted(*arguments: Any, **options: Any) -> Verdict:
        seeds.append(arguments[2])
        return decide(*arguments, **options)

    decide = grade_submission.decide
    monkeypatch.setattr(grade_submission, "decide", counted)
    monkeypatch.setattr(grade_submission, "_unwritten", {})

    def decided(source: str, seed: int) -> Verdict:
        answers = planted.untouched("04_zero") | {EXERCISE.answer: source}
        answer = cloudpickle.dumps(planted.subjects("04_zero", answers)[EXERCISE.answer])
        with RankPool(trust=Trust.UNTRUSTED) as ranks:
            attempts = VisibleAttempts(EXERCISE)
            return grade_submission._decide(EXERCISE, answer, seed, attempts, ranks)

    stub = planted.untouched("04_zero")[EXERCISE.answer]
    first, second = decided(stub, seed=1), decided(stub, seed=2)
    assert seeds == [1]
    assert first.unwritten
    assert second.unwritten
    assert (first.seed, second.seed) == (1, 2)
    assert second.to_plain() | {"seed": 1} == first.to_plain()

    changed = stub.replace("NotImplementedError", "ValueError")
    assert changed != stub
    assert not decided(changed, seed=3).unwritten
    assert seeds == [1, 3]
