"""What was decided about one answer: plain data, safe to store and to show."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

from pydantic import TypeAdapter

from autograder.exercise import Spent

RESOURCE_LIMIT: Final = "resource limit"
TAMPERING: Final = "tampering"
Trouble = Literal["", "resource limit", "tampering"]
TROUBLES = get_args(Trouble)


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
    trouble: Trouble = ""  # why it failed, where that is more than a wrong answer
    believed: bool = True  # False: what it told of itself is not so, here and likely elsewhere

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
        """Partial credit by weight: a plain float from 0 to ``max_points``; 0 without any case.

        An answer that tampers in one case, or tells other than what is seen from outside, is
        believed in none: what it does unseen in small cases shows in large ones.
        """
        if self.trouble == TAMPERING or not all(case.believed for case in self.cases):
            return 0.0
        total = sum(case.weight for case in self.cases)
        earned = sum(case.weight for case in self.cases if case.passed)
        if total <= 0 or not math.isfinite(earned / total):
            return 0.0
        return float(min(max(round(self.max_points * earned / total, 4), 0.0), self.max_points))

    @property
    def trouble(self) -> Trouble:
        """The worst of the cases': tampering before a limit, a limit before nothing."""
        return max((case.trouble for case in self.cases), key=TROUBLES.index, default="")

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
        """One line for the student: all is well, or the first thing to put right."""
        if self.unwritten:
            return f"Not written yet: {self.answer}. Fill in its cell above, run it, then this one."
        first = next((case for case in self.cases if not case.passed), None)
        if first is None:
            return self.score
        return f"{self.score}. {self.note or f'{first.title}: {first.diagnosis}'}"

    def to_plain(self) -> dict[str, Any]:
        """As JSON has it, with the points for who reads that alone; `from_plain` reads it back."""
        return {**json.loads(json.dumps(asdict(self))), "points": self.points}

    @classmethod
    def from_plain(cls, plain: Any) -> Verdict:
        """Raises ValueError for what `to_plain` would not have written."""
        verdict = _VERDICTS.validate_json(json.dumps(plain), strict=True)
        if {**verdict.to_plain(), "points": None} != {**plain, "points": None}:
            raise ValueError("a Verdict lacks something, or has what is no part of one")
        return verdict


_VERDICTS = TypeAdapter(Verdict)
