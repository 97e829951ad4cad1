"""Exercises that run on ranks: cases, inputs by rank, `drive`, budgets, references by rank."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autograder.exercise.attempt import Attempt, Finding
from autograder.exercise.compare import equal, with_key
from autograder.exercise.form import Exercise, Named
from autograder.guest.case import Case, Plain
from shardlab.ranks.wording import each_rank_text


@dataclass(frozen=True, kw_only=True)
class OnRanks(Exercise):
    """``inputs``: (case, rng) -> a list by rank, or one value that every rank gets.

    The answer may be a function that runs on ranks, a class, or plain data; ``drive`` uses it.

    ``execute``: for answers that are data to execute, such as a schedule.  After ``drive`` has
    returned on all ranks, ``execute(outputs of all ranks, this rank's input, case)`` runs on ranks
    that never ran student code; the dict it returns is merged into that rank's output.
    """

    inputs: Callable[[Case, np.random.Generator], Plain]
    named_within: float | None = None  # the tolerance for named mistakes, if it differs

    def draw(self, case: Case, rng: np.random.Generator) -> Sequence[Plain]:
        return on_every_rank(self.inputs(case, rng), case)

    def named(
        self, attempt: Attempt, among: Container[str] | None = None
    ) -> tuple[Named, ...] | None:
        difference = self.difference(attempt) if attempt.error is None else None
        if difference is None:
            return None
        within = self.tolerance if self.named_within is None else self.named_within
        found = []
        for mistake, outputs in self.required_half.mistakes(attempt.case, attempt.inputs, among):
            if outputs is None or (
                _all_equal(outputs, attempt.outputs, within)
                and not _all_equal(outputs, attempt.expected, within)
            ):
                finding = self._finding(attempt, mistake, difference)
                found.append(Named(finding, is_certain=outputs is not None))
        return tuple(found)

    def _finding(self, attempt: Attempt, mistake: str, difference: Finding) -> Finding:
        if len(attempt.outputs) == 1:
            evidence = with_key(difference.mistake, difference.evidence)
            return Finding(self.answer, mistake, evidence, who_if_hidden=self.answer)
        pairs = enumerate(zip(attempt.expected, attempt.outputs, strict=True))
        wrong = [rank for rank, pair in pairs if not equal(*pair, self.tolerance)]
        evidence = f"{difference.who}: {with_key(difference.mistake, difference.evidence)}"
        if len(wrong) == len(attempt.outputs):
            # "every rank does not …" could also mean that only some do not
            is_negative = mistake.startswith(("never ", "does not "))
            who = "your answer" if is_negative else "every rank"
            return Finding(who, mistake, evidence, who_if_hidden=who)
        return Finding(each_rank_text(wrong), mistake, evidence)


def _all_equal(some: Sequence[Plain], others: Sequence[Plain], tolerance: float | None) -> bool:
    return all(equal(*pair, tolerance) for pair in zip(some, others, strict=True))


def on_every_rank(value: Any, case: Case) -> list[Plain]:
    """A list is by rank; anything else is the same on every rank. Raises ValueError."""
    if not isinstance(value, list):
        return [value] * case.world_size
    if len(value) != case.world_size:
        raise ValueError(f"{case.name}: {len(value)} values for {case.world_size} ranks")
    return value
