"""The form of an exercise: a public half that ships to students, and a hidden one that decides.

The public half is ``EXERCISE`` in ``exercises/labNN_name/answer.py``, a `Formula` or `OnRanks`.
The hidden half is a module of the same name in ``hidden/``; see `hidden.HiddenHalf` for what it
defines.  A students' copy has what the hidden half gave for the visible cases, written down as
data (recorded.py).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from autograder.exercise.attempt import Attempt, Curves, Finding
from autograder.exercise.budget import Budget, Limit
from autograder.exercise.compare import find_difference
from autograder.guest.case import Case, Plain

Outputs = Sequence[Plain]  # by rank
Sign = Callable[[Attempt], Finding | None]


@dataclass(frozen=True)
class Named:
    """A named mistake that may explain a case. Not ``is_certain``: its outputs are not recorded."""

    finding: Finding
    is_certain: bool = True


class Half(Protocol):
    """What decides: computed in an instructor's checkout, recorded in a students' copy."""

    @property
    def cases(self) -> Sequence[Case]:
        """The hidden ones."""

    def facts(self, case: Case) -> Mapping[str, Plain]:
        """Parameters of a case that are another exercise's answer."""

    def draw(self, case: Case, rng: np.random.Generator) -> Plain:
        """A formula's questions in a hidden case."""

    def expected(self, case: Case, inputs: Sequence[Plain]) -> Outputs: ...

    def mistakes(
        self, case: Case, inputs: Sequence[Plain], among: Container[str] | None = None
    ) -> Iterator[tuple[str, Outputs | None]]:
        """The message of each named mistake (of those in ``among``) and the outputs it leads to;
        None where these are not recorded."""

    def limit(self, label: str, case: Case) -> Limit | None: ...


def NAMED(attempt: Attempt) -> Finding | None:
    """Where in ``signs`` the named mistakes come; by default after all of them."""
    raise TypeError("stands for the hidden half's mistakes: see evaluation.judge")


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """What formulas and exercises on ranks have in common. Raises ValueError where it is broken."""

    points: float
    cases: tuple[Case, ...]  # the visible ones; a loaded exercise has the hidden ones as well
    answer: str = ""  # the name that the student's cell defines; by default the module's
    tolerance: float | None = None  # relative and absolute; None: that of the dtype
    budgets: tuple[Budget, ...] = ()
    allows: frozenset[str] | None = None  # torch.distributed's names; None: any
    signs: tuple[Sign, ...] = ()  # mistakes that outputs alone do not show; the first one counts
    timeout_s: float = 20.0  # for one case
    output_bytes: int = 256_000_000  # of one case, all ranks' outputs together
    engine: str = "auto"  # launch's: "deepspeed" where `drive` or the answer uses it
    curves: Callable[[Attempt], Curves] | None = None
    memory: bool = False  # whether live bytes are recorded: `run.memory` in budgets and signs
    # Parameters of a case that only budgets and signs read: they do not travel to the ranks.
    kept_from_ranks: frozenset[str] = frozenset()
    # On every rank, next to the student's code: (subject, this rank's input, case) -> plain output.
    drive: Callable[[Any, Plain, Case], Plain]
    execute: Callable[[Sequence[Plain], Plain, Case], Plain] | None = None  # see OnRanks
    # Given by exercises.load:
    name: str = ""  # "ring_all_reduce.reduce_scatter": chapter and answer
    closed: tuple[str, ...] = ()  # modules that the answer may not call: the lab's CLOSED
    half: Half | None = None

    def __post_init__(self) -> None:
        if not self.points > 0:
            raise ValueError(f"{self.name or self.answer}: points must be above 0")
        if not any(not case.hidden for case in self.cases):
            raise ValueError(f"{self.name}: a student needs at least one visible case")
        if len({case.name for case in self.cases}) < len(self.cases):
            raise ValueError(f"{self.name}: two cases share a name, and so would share inputs")

    def joined(self, half: Half, chapter: str, module: str, closed: tuple[str, ...]) -> Exercise:
        """This public half, with what decides of the other one."""
        answer, cases = self.answer or module, (*self.cases, *half.cases)
        name = f"{chapter}.{answer}"
        cases = tuple(replace(c, params={**c.params, **half.facts(c)}) for c in cases)
        return replace(self, answer=answer, name=name, closed=closed, half=half, cases=cases)

    @property
    def is_point_to_point(self) -> bool:
        """Whether ranks may send and receive, and nothing else."""
        return self.allows is not None and self.allows <= {"send", "recv"}

    @property
    def decides(self) -> Half:
        if self.half is None:
            raise ValueError(f"{self.answer} is half an exercise: get it by exercises.load")
        return self.half

    def draw(self, case: Case, rng: np.random.Generator) -> Sequence[Plain]:
        """In the checker's process: one plain input for each rank."""
        raise NotImplementedError

    def expect(self, case: Case, inputs: Sequence[Plain]) -> Outputs:
        """In the checker's process. Of a dict's keys only the expected ones are compared; what
        else ``drive`` returns is evidence for the signs."""
        return self.decides.expected(case, inputs)

    def limit_of(self, budget: Budget, case: Case) -> Limit | None:
        return budget.limit(case) if budget.limit else self.decides.limit(budget.label, case)

    def difference(self, attempt: Attempt) -> Finding | None:
        """The first place where the outputs are not as expected."""
        return find_difference(attempt.expected, attempt.outputs, self.tolerance)

    def named(
        self, attempt: Attempt, among: Container[str] | None = None
    ) -> tuple[Named, ...] | None:
        """Each mistake (of those in ``among``) that leads to exactly these outputs; None where the
        outputs are right."""
        raise NotImplementedError
