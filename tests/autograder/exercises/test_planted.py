"""Every planted mistake on real ranks: the points it loses and the message that names it.

grading/test_nbgrader.py and test_nbgrader_labs.py show through nbgrader itself that right answers
earn full marks and blank ones none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from autograder import exercises
from autograder.evaluation.decide import decide
from autograder.evaluation.verdict import Verdict
from autograder.exercise import Exercise
from shardlab.ranks import codec
from shardlab.ranks.trust import Trust
from tests.submissions import planted
from tests.submissions.deciding import exercise_of

pytestmark = pytest.mark.long
SEED = 7


def mistakes() -> Iterator[Any]:
    """All but the first of each exercise are exhaustive."""
    seen: set[tuple[str, str]] = set()
    for lab in exercises.labs():
        for mistake in planted.of_lab(lab):
            answers = {(lab, answer) for answer in mistake.loses}
            marks = (pytest.mark.exhaustive,) if answers <= seen else ()
            seen |= answers
            yield pytest.param(mistake, id=f"{lab}-{mistake.name}", marks=marks)


def decide_answer(lab: str, exercise: Exercise, answers: dict[str, str]) -> Verdict:
    subject = planted.subjects(lab, answers)[exercise.answer]
    return decide(exercise, codec.encode_any(subject), SEED)


@pytest.mark.ranks
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mistake", [*mistakes()])
def test_mistake_loses_its_own_points_and_is_named(
    mistake: planted.Submission, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "autograder.evaluation")
    answers = planted.solution(mistake.lab) | mistake.answers
    for answer in mistake.loses:
        exercise = exercise_of(mistake.lab, answer)
        verdict = decide_answer(mistake.lab, exercise, answers)
        assert type(verdict.points) is float
        lost = verdict.max_points - verdict.points
        wrong = [case for case in verdict.cases if not case.passed]
        diagnoses = [case.diagnosis for case in wrong]
        seen = "\n".join([f"violation: {verdict.violation or 'none'}", *diagnoses])
        assert lost == pytest.approx(mistake.loses[exercise.answer], abs=1e-3), seen
        message = mistake.says[exercise.answer]
        if verdict.note:
            assert message in verdict.note
        else:
            assert all(message in diagnosis for diagnosis in diagnoses), diagnoses
        assert_no_hidden_sizes(exercise, verdict)
    # Answers may have any form, but no planted one should make a diagnosis raise.
    assert not caplog.records


def assert_no_hidden_sizes(exercise: Exercise, verdict: Verdict) -> None:
    """What a student reads about a hidden case contains only small numbers from its inputs.

    Small ones are part of the advice itself: "rank + 1", "2Ψ", "stage 3".
    """
    for case, result in zip(exercise.cases, verdict.cases, strict=True):
        if case.hidden:
            assert result.title == "hidden case"
            sizes = {number for number in numbers_in(dict(case.params)) if number > 32}
            read = {int(number) for number in re.findall(r"\d+", result.diagnosis)}
            assert not sizes & read, result.diagnosis


def numbers_in(value: Any) -> Iterator[int]:
    if isinstance(value, int):
        yield value
    elif isinstance(value, dict):
        yield from numbers_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from numbers_in(item)


@pytest.mark.parametrize("lab", exercises.labs())
def test_every_exercise_has_at_least_three_planted_mistakes(lab: str) -> None:
    planted_for = [answer for mistake in planted.of_lab(lab) for answer in mistake.loses]
    for exercise in exercises.of_lab(lab):
        wanted = 1 if lab == "03_ring_all_reduce" else 3
        assert planted_for.count(exercise.answer) >= wanted, exercise.name


@pytest.mark.parametrize("lab", exercises.labs())
def test_the_notebook_checks_every_exercise_once(lab: str) -> None:
    checked = []
    for cell in planted.code_cells(lab):
        call = re.match(r'check\("([^"]+)", (\w+)\)$', cell.source)
        if call:
            checked.append(call[1])
            assert call[1].endswith(f".{call[2]}")
    assert sorted(checked) == sorted(exercise.name for exercise in exercises.of_lab(lab))


MEASURED = [
    pytest.param(lab, exercise.answer, id=f"{lab}-{exercise.answer}")
    for lab in exercises.labs()
    for exercise in exercises.of_lab(lab)
    if exercise.memory
]


@pytest.mark.parametrize(("lab", "answer"), MEASURED)
def test_live_bytes_are_compared_with_the_process_memory(lab: str, answer: str) -> None:
    """They are recorded in the student's process: a large hidden case is measured from outside."""
    exercise = exercise_of(lab, answer)
    outside = [budget for budget in exercise.budgets if budget.from_outside]
    checked = [case for case in exercise.cases for budget in outside if budget.limit(case)]
    assert checked
    assert all(case.hidden for case in checked)


@pytest.mark.ranks
@pytest.mark.parametrize(("lab", "answer"), MEASURED)
def test_an_answer_that_raises_immediately_gets_a_verdict(
    lab: str, answer: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The moments of its budgets are never reached, which is not an error of the grader."""

    def raises(*_: object, **__: object) -> None:  # local, so that ranks need not import this file
        raise RuntimeError("a mistake of the student's")

    caplog.set_level("INFO", "autograder.evaluation")
    verdict = decide(exercise_of(lab, answer), codec.encode_any(raises), SEED, trust=Trust.OWN)
    assert verdict.points == 0
    assert not caplog.records
