"""How an exercise is declared: cases, oracle, budgets, allowed calls, mistakes it can name.

One form serves whatever a student hands in: a function that runs on ranks, an ``nn.Module`` or
optimizer class, a schedule or configuration (plain data), or a number.  Only ``drive`` knows the
difference, and ``drive`` is the only part that runs beside student code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardlab.errors import LaunchError
from shardlab.ranks.trust import Trust
from shardlab.run import Run

MAX_QUOTE = 300
SENT = "sent by a rank"  # the heading of budgets of traffic
Plain = Any  # tensors, numpy arrays, numbers, str, bytes, None; lists, tuples, dicts of these


@dataclass(frozen=True)
class Case:
    """One situation that the answer has to master. ``params`` is plain data.

    Students see a case's name and inputs unless it is hidden; a hidden case is for grading only.
    """

    name: str
    world_size: int
    params: Mapping[str, Any] = field(default_factory=dict)
    hidden: bool = False
    weight: float = 1.0


@dataclass(frozen=True)
class Finding:
    """A mistake by its name. ``who`` and ``evidence`` are shown for visible cases only.

    visible: "rank 2 returned the sum, not the mean: divide by world_size (element 0: 8, not 2)"
    hidden:  "a rank returned the sum, not the mean: divide by world_size"
    """

    who: str  # "rank 2", "ranks 0 and 1", "chunk_bounds(10, 4)"
    mistake: str  # a verb and what follows; says nothing of a case's inputs or sizes
    evidence: str = ""
    anyone: str = "a rank"  # stands for ``who`` where the case is hidden
    in_full: str = ""  # said of a visible case instead, where an error has put it best

    def text(self, hidden: bool) -> str:
        if hidden:
            return f"{self.anyone} {self.mistake}"
        if self.in_full:
            return shorten(self.in_full)
        evidence = f" ({shorten(self.evidence)})" if self.evidence else ""
        return f"{self.who} {self.mistake}{evidence}"


def shorten(text: str) -> str:
    """Evidence quotes what student code made, and that may be of any length."""
    return text if len(text) <= MAX_QUOTE else f"{text[:MAX_QUOTE]} …"


@dataclass(frozen=True)
class Spent:
    """A budget held against what one run used, by rank."""

    label: str
    used: tuple[int, ...]
    limit: tuple[int, ...]
    least: tuple[int, ...]
    heading: str = SENT
    unit: str = "B"
    from_outside: bool = False

    @property
    def fits(self) -> bool:
        return not self.ranks_over and not self.ranks_under

    @property
    def ranks_over(self) -> list[int]:
        """Ranks above their limit, the furthest first."""
        over = [rank for rank, used in enumerate(self.used) if used > self.limit[rank]]
        return sorted(over, key=lambda rank: self.used[rank] / max(self.limit[rank], 1))[::-1]

    @property
    def ranks_under(self) -> list[int]:
        """Ranks below what a right answer cannot do without: something went another way."""
        return [rank for rank, used in enumerate(self.used) if used < self.least[rank]]


@dataclass(frozen=True)
class Attempt:
    """What one case left behind: all that the judge and the diagnoses look at."""

    case: Case
    inputs: Sequence[Plain]  # by rank
    expected: Sequence[Plain]  # by rank
    outputs: Sequence[Plain]  # by rank; None for ranks that did not finish
    run: Run | None  # partial after an error; None where nothing is known
    error: LaunchError | None
    spent: tuple[Spent, ...] = ()
    trust: Trust = Trust.OWN  # untrusted: what is said of it must be the same each time
    unmeasured: tuple[str, ...] = ()  # budgets that the run has left nothing to hold against


@dataclass(frozen=True)
class Budget:
    """A limit for every rank, such as sent bytes, on something that the run measured."""

    label: str
    limit: Callable[[Case], Sequence[float] | None]  # by rank; None: this case has no limit
    used: Callable[[Run], Sequence[int]]  # by rank
    least: Callable[[Case], Sequence[float]] | None = None  # by rank; None: 0
    heading: str = SENT  # of its column in the check's table
    unit: str = "B"
    # Whether it is read off the ranks' processes, where none of their code can change it: for
    # graders alone.  Missed where all others are kept, it says that these were told wrongly.
    from_outside: bool = False


@dataclass(frozen=True)
class Curves:
    """Numbers after each step, for the feedback's picture: of this run, and what they should be."""

    title: str
    got: Mapping[str, Sequence[float]]  # by name: "rank 0", "your weight"
    expected: Sequence[float] = ()
    level: float | None = None  # what they should come to, where only that is known


@dataclass(frozen=True)
class Exercise:
    """See the module's docstring. Raises ValueError where the declaration contradicts itself."""

    name: str  # "ring_all_reduce.reduce_scatter": chapter and answer
    points: float
    cases: tuple[Case, ...]
    # In the checker's process: one plain input for each rank.
    draw: Callable[[Case, np.random.Generator], Sequence[Plain]]
    # On every rank, beside the student's code: (subject, this rank's input, case) -> plain output.
    drive: Callable[[Any, Plain, Case], Plain]
    # In the checker's process: one expected output for each rank.  Of a dict's keys only the
    # expected ones are compared; what else ``drive`` returns is evidence for the diagnoses.
    expect: Callable[[Case, Sequence[Plain]], Sequence[Plain]]
    tolerance: float | None = None  # relative and absolute; None: that of the dtype
    budgets: tuple[Budget, ...] = ()
    allows: frozenset[str] | None = None  # torch.distributed's names; None: any
    diagnoses: tuple[Callable[[Attempt], Finding | None], ...] = ()  # the first that speaks wins
    timeout_s: float = 20.0  # for one case
    output_bytes: int = 256_000_000  # of one case, all ranks' outputs together
    engine: str = "auto"  # launch's: "deepspeed" where `drive` or the answer uses it
    curves: Callable[[Attempt], Curves] | None = None
    memory: bool = False  # whether live bytes are recorded: `run.memory` in budgets and diagnoses

    def __post_init__(self) -> None:
        if self.name.count(".") != 1:
            raise ValueError(f"name {self.name!r} should be 'chapter.answer'")
        if not self.points > 0:
            raise ValueError(f"{self.name}: points must be above 0")
        if not any(not case.hidden for case in self.cases):
            raise ValueError(f"{self.name}: a student needs at least one visible case")
        if len({case.name for case in self.cases}) < len(self.cases):
            raise ValueError(f"{self.name}: two cases share a name, and so would share inputs")

    @property
    def is_point_to_point(self) -> bool:
        """Whether ranks may send and receive, and nothing else."""
        return self.allows is not None and self.allows <= {"send", "recv"}

    @property
    def answer(self) -> str:
        """The name that the student's cell defines: ``reduce_scatter``."""
        return self.name.partition(".")[2]
