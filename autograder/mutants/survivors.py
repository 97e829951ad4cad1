"""Which mutants of a solution earn full marks, and which of these are known to be correct."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from autograder.evaluation.trial import RankPool, Trials
from autograder.exercise import Exercise
from autograder.exercise.hidden import HiddenHalf
from autograder.exercises.hidden.answers import solution, subjects
from autograder.mutants.changes import Mutant, mutants, normalized
from shardlab.ranks import codec
from shardlab.ranks.threads import one_thread

SEED = 11


@dataclass(frozen=True)
class Decided:
    """``reason``: why it is correct, from the exercise's EQUIVALENT_ANSWERS; "" if unknown."""

    mutant: Mutant
    survives: bool
    reason: str = ""

    @property
    def is_unexplained(self) -> bool:
        return self.survives and not self.reason


def mutants_of(lab: str, exercise: Exercise, sample: int | None = None) -> list[Mutant]:
    """All mutants of the exercise's solution, or ``sample`` of them, fixed by the solution."""
    source = solution(lab)[exercise.answer]
    found = mutants(source)
    if sample is None:
        return found
    return sorted(found, key=lambda each: hashlib.sha256(each.source.encode()).digest())[:sample]


@one_thread()
def decide_mutants(
    lab: str, exercise: Exercise, chosen: Iterable[Mutant], ranks: RankPool
) -> Iterator[Decided]:
    """``ranks``: untrusted, as in grading; they expect the exercise's cases."""
    answers = solution(lab)
    source = answers[exercise.answer]
    half = exercise.required_half
    assert isinstance(half, HiddenHalf), "mutants need an instructor's checkout"
    equal = {
        normalized(source.replace(each.old, each.new)): each.reason
        for each in half.equivalent_answers
    }
    for mutant in chosen:
        survives = _passes(lab, exercise, answers | {exercise.answer: mutant.source}, ranks)
        yield Decided(mutant, survives, equal.get(normalized(mutant.source), ""))


def _passes(lab: str, exercise: Exercise, answers: dict[str, str], ranks: RankPool) -> bool:
    """Whether all cases pass; runs none after the first that fails.

    In a folder of its own, because a mutant may write files into the current one.
    """
    try:
        subject = subjects(lab, answers)[exercise.answer]
        blob = codec.encode_any(subject)
    except Exception:  # a mutant may do anything
        return False
    trials = Trials(exercise, blob, SEED, ranks)
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        return all(trials.run(case)[1].result.passed for case in exercise.cases)
