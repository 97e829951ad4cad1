"""Decides many answers to an exercise: its inputs and its references are computed once."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import cloudpickle

from autograder import exercises
from autograder.evaluation.decide import decide
from autograder.evaluation.trial import rng_for
from autograder.exercise import Exercise
from autograder.exercise.reference_cache import with_cached_references
from autograder.guest.case import Case, Plain
from tests.submissions import planted


@functools.lru_cache(maxsize=8)  # more than a lab has
def exercise_of(lab: str, answer: str) -> Exercise:
    """With cached inputs and references, right and wrong: decide all answers with the same seed."""
    (exercise,) = (each for each in exercises.of_lab(lab) if each.answer == answer)
    return with_cached_references(exercise)


def points_of(lab: str, exercise: Exercise, source: str, seed: int = 11) -> float:
    """What the course's solution of ``lab`` earns with this answer to ``exercise`` instead."""
    subjects = planted.subjects(lab, planted.solution(lab) | {exercise.answer: source})
    return decide(exercise, cloudpickle.dumps(subjects[exercise.answer]), seed).points


def inputs_of(exercise: Exercise, case: Case, seed: int = 11) -> Sequence[Plain]:
    """By rank; the same in each call."""
    return list(exercise.draw(case, rng_for(exercise, case, seed)))
