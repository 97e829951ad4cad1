"""What was decided about one answer: plain data, safe to store and to show."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autograder.exercise import Spent


@dataclass(frozen=True)
class CaseResult:
    """One case. ``diagnosis`` may be shown to the student, even that of a hidden case."""

    name: str  # for a hidden case: for instructors' eyes only
    hidden: bool
    weight: float
    passed: bool
    mistake: str = ""  # its name, the same for all cases that fail by it
    diagnosis: str = ""
    instructor_note: str = ""  # the diagnosis with its evidence, also for a hidden case
    outputs_right: bool = False
    was_run: bool = True
    sent_bytes: tuple[int, ...] = ()  # by rank
    spent: tuple[Spent, ...] = ()

    @property
    def title(self) -> str:
        return "hidden case" if self.hidden else self.name


@dataclass(frozen=True)
class Verdict:
    """Points and reasons for one answer."""

    exercise: str
    max_points: float
    cases: tuple[CaseResult, ...]
    seed: int
    unwritten: bool = False
    note: str = ""  # what only all cases together show, such as "works only for 4 ranks"

    @property
    def passed(self) -> bool:
        return bool(self.cases) and all(case.passed for case in self.cases)

    @property
    def points(self) -> float:
        """Partial credit by weight: a plain float from 0 to ``max_points``; 0 without any case."""
        total = sum(case.weight for case in self.cases)
        earned = sum(case.weight for case in self.cases if case.passed)
        if total <= 0 or not math.isfinite(earned / total):
            return 0.0
        return float(min(max(round(self.max_points * earned / total, 4), 0.0), self.max_points))

    @property
    def answer(self) -> str:
        return self.exercise.partition(".")[2]

    @property
    def score(self) -> str:
        if self.passed:
            return f"{self.answer}: all {len(self.cases)} cases pass"
        return f"{self.answer}: {sum(c.passed for c in self.cases)} of {len(self.cases)} cases pass"

    @property
    def headline(self) -> str:
        """One line for the student: all is well, or the first thing to mend."""
        if self.unwritten:
            return f"Not written yet: {self.answer}. Fill in its cell above, run it, then this one."
        first = next((case for case in self.cases if not case.passed), None)
        if first is None:
            return self.score
        return f"{self.score}. {self.note or f'{first.title}: {first.diagnosis}'}"
