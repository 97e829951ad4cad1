"""Formulas: what is said about a wrong answer, and which wrong formula explains it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from autograder.exercise import Attempt, Case, Formula, questions
from autograder.exercise.formula import BOTH, call_of
from autograder.exercise.hidden import HiddenHalf

SIZES = questions("sizes", (10, 4), (12, 4), (20_000, 4))


def formula(*cases: Case, mistakes: dict[str, Any] | None = None, **more: Any) -> Formula:
    """The answer is ``bound(n, parts)``, rounded up."""
    half = SimpleNamespace(
        right=lambda n, parts: -(-n // parts),
        MISTAKES=mistakes or {},
        CASES=[questions("drawn")],
        draw=lambda case, rng: [(int(rng.integers(1, 9)), 3), {"n": 5, "parts": 2}],
    )
    public = Formula(points=1, answer="bound", cases=cases or (SIZES,), **more)
    exercise = public.with_hidden_half(HiddenHalf(half), "lab", "bound", ())
    assert isinstance(exercise, Formula)
    return exercise


def attempt(exercise: Formula, *answers: Any) -> Attempt:
    case = exercise.cases[0]
    inputs = exercise.draw(case, np.random.default_rng(0))
    outputs = [list(answers)]
    return Attempt(case, inputs, exercise.expect(case, inputs), outputs, None, None)


def said(exercise: Formula, *answers: Any) -> str:
    found = exercise.difference(attempt(exercise, *answers))
    return found.text(hidden=False) if found else ""


def named(exercise: Formula, *answers: Any) -> list[str] | None:
    found = exercise.named(attempt(exercise, *answers))
    return None if found is None else [each.finding.mistake for each in found]


def test_the_first_wrong_question_is_shown_as_a_call() -> None:
    exercise = formula()
    assert said(exercise, 3, 3, 5000) == ""
    assert said(exercise, 3, 3, 2500) == (
        "bound(20_000, 4) gives the wrong number (2,500, expected 5,000, 0.5 × the expected value)"
    )
    found = exercise.difference(attempt(exercise, 3, 2, 2500))
    assert found
    assert found.text(hidden=False).startswith("bound(12, 4) gives the wrong number (2, ")
    assert found.text(hidden=True) == "bound gives the wrong number"


@pytest.mark.parametrize("answers", [(3, 3), ()])
def test_answers_to_only_some_questions_name_no_question(answers: tuple[int, ...]) -> None:
    assert said(formula(), *answers).startswith("your answer has the wrong length")


def test_a_call_is_written_as_in_a_notebook() -> None:
    assert (
        call_of("f", [7_500_000_000, 9999, 0.5, "a", True])
        == "f(7_500_000_000, 9999, 0.5, 'a', True)"
    )
    assert call_of("f", {"psi": 10_000, "stage": 1}) == "f(psi=10_000, stage=1)"


def test_the_form_of_an_answer_is_explained_before_its_numbers() -> None:
    def whole(question: Any, right: Any, got: Any) -> Any:
        return "returns a fraction" if isinstance(got, float) else None

    exercise = formula(forms=(whole,), mistakes={"rounds nothing": lambda n, parts: n / parts})
    assert said(exercise, 2.5, 3, 5000).startswith("bound(10, 4) returns a fraction (2.5, expected")
    assert named(exercise, 2.5, 3, 5000) == []
    assert said(exercise, 2, 3, 5000).startswith("bound(10, 4) gives the wrong number")


def test_a_mistake_is_named_if_it_reproduces_every_wrong_answer() -> None:
    mistakes = {
        "rounds down": lambda n, parts: n // parts,
        "always 2": lambda n, parts: 2,
        "is right there": lambda n, parts: -(-n // parts),
        "applies to no question": lambda n, parts: 1 // 0,
    }
    exercise = formula(mistakes=mistakes)
    assert named(exercise, 3, 3, 5000) is None  # right
    # Both reproduce the wrong answer; only the first the right ones, too.
    assert named(exercise, 2, 3, 5000) == ["rounds down", "always 2"]
    assert named(formula(mistakes=dict(reversed(mistakes.items()))), 2, 3, 5000) == [
        "rounds down",
        "always 2",
    ]
    assert named(exercise, 2, 2, 5000) == ["always 2"]
    assert named(exercise, 2, 7, 5000) == []
    among = exercise.named(attempt(exercise, 2, 3, 5000), {"always 2"})
    assert [each.finding.mistake for each in among or ()] == ["always 2"]
    assert named(exercise, 2, 3) == []  # not every question has an answer
    near = formula(
        tolerance=0.1, mistakes={"is right, too": lambda n, parts: -(-n // parts) * 0.95}
    )
    assert named(near, 2.6, 3, 5000) == []


def test_two_mistakes_at_once_also_reproduce_the_right_answers() -> None:
    """There are many pairs: one that explains only the wrong answers may do so by chance."""
    both = {f"rounds down{BOTH}subtracts one": lambda n, parts: n // parts - 1}
    exercise = formula(mistakes=both)
    assert named(exercise, 1, 2, 4999) == [*both]
    assert named(exercise, 1, 3, 4999) == []
    alone = formula(mistakes={"subtracts": lambda n, parts: n // parts - 1})
    assert named(alone, 1, 3, 4999) == ["subtracts"]


def test_a_hidden_case_without_questions_draws_them() -> None:
    exercise = formula()
    case = exercise.cases[1]
    assert case.hidden
    (one,), (other,) = (exercise.draw(case, np.random.default_rng(seed)) for seed in (1, 1))
    assert one == other
    assert one[1] == {"n": 5, "parts": 2}
    assert exercise.expect(case, [one])[0][1] == 3
