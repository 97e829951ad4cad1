"""The form of an exercise: a public half that ships to students, and a hidden half for grading.

The public half is ``EXERCISE`` in ``exercises/labNN_name/answer.py``, a `Formula` or `OnRanks`.
The hidden half is a module of the same name in ``hidden/``; hidden.py lists what it defines.  A
students' copy contains the hidden half's results for the visible cases, recorded as data
(recorded.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from autograder.exercise.attempt import Attempt, Curves, Finding
from autograder.exercise.budget import Budget, Limit
from autograder.exercise.call_difference import RightCalls
from autograder.exercise.compare import find_difference
from autograder.guest.case import Case, Plain

Outputs = Sequence[Plain]  # by rank
Sign = Callable[[Attempt], Finding | None]


@dataclass(frozen=True)
class Named:
    """A named mistake that may explain a case; ``is_certain`` if its outputs were compared."""

    finding: Finding
    is_certain: bool = True


class Half(Protocol):
    """The hidden half: computed in an instructor's checkout, recorded in a students' copy."""

    @property
    def cases(self) -> Sequence[Case]:
        """The hidden cases."""

    def facts(self, case: Case) -> Mapping[str, Plain]:
        """Parameters of a case that come from another exercise's reference."""

    def draw(self, case: Case, rng: np.random.Generator) -> Plain:
        """A formula's questions for a hidden case."""

    def expected(self, case: Case, inputs: Sequence[Plain]) -> Outputs: ...

    def mistakes(
        self, case: Case, inputs: Sequence[Plain], among: Container[str] | None = None
    ) -> Iterator[tuple[str, Outputs | None]]:
        """Each named mistake (of those in ``among``): its message and its outputs, or None if these
        are not recorded."""

    def limit(self, label: str, case: Case) -> Limit | None: ...

    def solution(self) -> object | None:
        """The course's answer; None in a students' copy."""

    def right_calls(self, case: Case) -> RightCalls | None:
        """The solution's recorded calls; None in a checkout, or if it makes none."""


def NAMED_MISTAKES(attempt: Attempt) -> Finding | None:
    """Placeholder in ``signs`` for the named mistakes; by default they come after all signs."""
    raise TypeError("a placeholder for the hidden half's mistakes: see evaluation.judge")


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """The common part of formulas and exercises on ranks. Raises ValueError if it is invalid."""

    points: float
    cases: tuple[Case, ...]  # the visible cases; exercises.load adds the hidden ones
    answer: str = ""  # the name that the student's cell defines; by default the module's
    tolerance: float | None = None  # relative and absolute; None: the dtype's default
    budgets: tuple[Budget, ...] = ()
    allows: frozenset[str] | None = None  # functions of torch.distributed; None: any
    signs: tuple[Sign, ...] = ()  # detect mistakes that outputs do not show; the first match counts
    rules: tuple[Sign, ...] = ()  # a match fails the case, whatever its outputs
    timeout_s: float = 20.0  # for one case
    output_bytes: int = 256_000_000  # total over all ranks' outputs, for one case
    engine: str = "auto"  # as in launch: "deepspeed" if `drive` or the answer uses it
    curves: Callable[[Attempt], Curves] | None = None
    memory: bool = False  # whether live bytes are recorded; in which cases: `records_memory`
    # Parameters of a case that only budgets and signs read: they are not sent to the ranks.
    kept_from_ranks: frozenset[str] = frozenset()
    # The key of each rank's input whose list of values the rank receives one at a time: each from
    # `guest.moments.mark` with this label, once the checker has measured the rank.
    withheld: str = ""
    # Modules that the answer must not call, because they contain it.  `load` puts the lab's CLOSED
    # before them; modules that are listed here stay open in the lab's other exercises.
    closed: tuple[str, ...] = ()
    # On every rank, next to the student's code: (subject, this rank's input, case) -> plain output.
    drive: Callable[[Any, Plain, Case], Plain]
    execute: Callable[[Sequence[Plain], Plain, Case], Plain] | None = None  # see OnRanks
    # Whether a check may compare calls with the solution's: not where right answers make others, or
    # where `drive` replaces earlier answers by ours, whose calls are not those of the task.
    compares_calls: bool = True
    # Whether the cases may have different named mistakes, because they test separate branches or
    # rules of the answer.  Otherwise a mistake is named only if it explains all wrong cases.
    separate_mistakes: bool = False
    # Whether feedback draws messages: not where `drive` gives the answer functions of ours that
    # send them in another way than the task's, which would be taken for the student's.
    draws_messages: bool = True
    # Given by exercises.load:
    name: str = ""  # "ring_all_reduce.reduce_scatter": chapter and answer
    half: Half | None = None
    _limits: dict[tuple[Budget, str], Limit | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if not 0 <= self.points < math.inf:  # 0: the question was dropped
            raise ValueError(f"{self.name or self.answer}: points must be 0 or more")
        if not any(not case.hidden for case in self.cases):
            raise ValueError(f"{self.name}: a student needs at least one visible case")
        if len({case.name for case in self.cases}) < len(self.cases):
            raise ValueError(f"{self.name}: two cases share a name and would share inputs")

    def with_hidden_half(
        self, half: Half, chapter: str, module: str, closed: tuple[str, ...]
    ) -> Exercise:
        """This public half combined with its hidden half."""
        answer, cases = self.answer or module, (*self.cases, *half.cases)
        name = f"{chapter}.{answer}"
        cases = tuple(replace(c, params={**c.params, **half.facts(c)}) for c in cases)
        closed = (*closed, *self.closed)
        return replace(self, answer=answer, name=name, closed=closed, half=half, cases=cases)

    @property
    def is_point_to_point(self) -> bool:
        """Whether ranks may only send and receive."""
        return self.allows is not None and self.allows <= {"send", "recv"}

    @property
    def required_half(self) -> Half:
        if self.half is None:
            raise ValueError(f"{self.answer} has no hidden half: load it with exercises.load")
        return self.half

    def draw(self, case: Case, rng: np.random.Generator) -> Sequence[Plain]:
        """In the checker's process: one plain input for each rank."""
        raise NotImplementedError

    def expect(self, case: Case, inputs: Sequence[Plain]) -> Outputs:
        """In the checker's process. If the output is a dict, only the expected keys are compared;
        other keys that ``drive`` returns are evidence for the signs."""
        return self.required_half.expected(case, inputs)

    def records_memory(self, case: Case) -> bool:
        """Whether `run.memory` exists: only where a budget applies, because recording is slow."""
        limits = (self.limit_of(budget, case) for budget in self.budgets)
        return self.memory and any(limit is not None for limit in limits)

    def limit_of(self, budget: Budget, case: Case) -> Limit | None:
        """Computed once for each case: some build its model."""
        key = budget, case.name
        if key not in self._limits:
            limit = budget.limit or partial(self.required_half.limit, budget.label)
            self._limits[key] = limit(case)
        return self._limits[key]

    def difference(self, attempt: Attempt) -> Finding | None:
        """The first place where the outputs differ from the expected ones."""
        return find_difference(attempt.expected, attempt.outputs, self.tolerance)

    def named(
        self, attempt: Attempt, among: Container[str] | None = None
    ) -> tuple[Named, ...] | None:
        """The named mistakes (of those in ``among``) that produce exactly these outputs; None if
        these are correct."""
        raise NotImplementedError
