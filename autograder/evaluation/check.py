"""``check``: what a graded cell calls, in the student's kernel."""

from __future__ import annotations

from typing import Any

from autograder import exercises
from autograder.evaluation.decide import decide
from autograder.evaluation.screen import Screen
from autograder.evaluation.trial import VISIBLE_SEED
from autograder.evaluation.verdict import Verdict
from autograder.exercise import Exercise
from autograder.guest.answer import CheckFailed, pickled
from shardlab.ranks.trust import Trust


def check(name: str, subject: Any) -> None:
    """Put an answer through its visible cases and show how it did.

    ``name`` is the exercise's ("ring_all_reduce.reduce_scatter"), ``subject`` whatever was asked
    for: a function, a class, plain data, a number.  Raises CheckFailed where it falls short and
    KeyError for a name that no exercise has.

    When a grader executes the cell, guest/kernel.py's ``check`` stands here instead: it passes the
    pickled answer to the grader's process.
    """
    verdict = _decide(exercises.load(name), subject)
    if not verdict.passed:
        raise CheckFailed(verdict.headline) from None


def _decide(exercise: Exercise, subject: Any) -> Verdict:
    if subject is None or subject is ...:  # the blank of a number or of plain data
        return Verdict(exercise.name, exercise.points, (), VISIBLE_SEED, unwritten=True)
    screen = Screen(sum(not case.hidden for case in exercise.cases))
    verdict = decide(
        exercise,
        pickled(exercise.answer, subject),
        VISIBLE_SEED,
        trust=Trust.OWN,
        on_case=screen.show_progress,
    )
    screen.show(verdict)
    return verdict
