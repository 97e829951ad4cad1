"""The verdict on one answer: plain data, safe to store and to show."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

from pydantic import TypeAdapter

from autograder.exercise import BudgetUsage

RESOURCE_LIMIT: Final = "resource limit"
TAMPERING: Final = "tampering"
Violation = Literal["", "resource limit", "tampering"]
VIOLATIONS = get_args(Violation)
FILL_IN = "Fill in its cell above, run it, then this one."


@dataclass(frozen=True)
class CaseResult:
    """The result of one case. ``diagnosis`` may be shown to the student, even for a hidden case."""

    name: str  # of a hidden case: for instructors only
    hidden: bool
    weight: float
    passed: bool
    mistake: str = ""  # its name, the same for all cases that it explains
    diagnosis: str = ""
    instructor_note: str = ""  # the diagnosis with its evidence, also for a hidden case
    quotes: bool = False  # the diagnosis quotes an error's message
    outputs_right: bool = False
    was_run: bool = True
    sent_bytes: tuple[int, ...] = ()  # by rank
    spent: tuple[BudgetUsage, ...] = ()
    violation: Violation = ""  # set if it failed for more than a wrong answer
    record_is_right: bool = True  # False: the live bytes it recorded are wrong, maybe in all cases
    # In a student's own check, for the first case that fails (help.py):
    calls_differ: str = ""  # where its calls begin to differ from those of the course's solution
    printed: str = ""

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
    note: str = ""  # a pattern across cases, such as that only those with 4 ranks pass

    @property
    def passed(self) -> bool:
        return bool(self.cases) and all(case.passed for case in self.cases)

    @property
    def points(self) -> float:
        """Partial credit by weight: a plain float from 0 to ``max_points``; 0 without any case.

        An answer that tampers in one case, or whose record contradicts the measurement from
        outside, gets no points: the same may go unnoticed in its smaller cases.
        """
        if self.violation == TAMPERING or not all(case.record_is_right for case in self.cases):
            return 0.0
        total = sum(case.weight for case in self.cases)
        earned = sum(case.weight for case in self.cases if case.passed)
        if total <= 0 or not math.isfinite(earned / total):
            return 0.0
        return float(min(max(round(self.max_points * earned / total, 4), 0.0), self.max_points))

    @property
    def violation(self) -> Violation:
        """The worst of all cases: tampering, then a resource limit, then none."""
        return max((case.violation for case in self.cases), key=VIOLATIONS.index, default="")

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
        """One line for the student: all cases pass, or the first thing to fix."""
        if self.unwritten:
            return f"Not written yet: {self.answer}. {FILL_IN}"
        first = next((case for case in self.cases if not case.passed), None)
        if first is None:
            return self.score
        return f"{self.score}. {self.note or f'{first.title}: {first.diagnosis}'}"

    @property
    def below_table(self) -> str:
        """The same, shorter, for a notebook that shows the table right above it."""
        return FILL_IN if self.unwritten else f"{self.score}. The table above shows what to fix."

    def to_plain(self) -> dict[str, Any]:
        """JSON-compatible data, including the points; `from_plain` reads it back."""
        return {**json.loads(json.dumps(asdict(self))), "points": self.points}

    @classmethod
    def from_plain(cls, plain: Any) -> Verdict:
        """Raises ValueError for data that `to_plain` does not write."""
        verdict = _VERDICTS.validate_json(json.dumps(plain), strict=True)
        if {**verdict.to_plain(), "points": None} != {**plain, "points": None}:
            raise ValueError("a Verdict with missing or unknown fields")
        return verdict


_VERDICTS = TypeAdapter(Verdict)
