"""The results of one case, and the findings about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autograder.guest.case import Case, Plain
from shardlab.errors import LaunchError
from shardlab.ranks.trust import Trust
from shardlab.run import Call, Run

MAX_QUOTE = 300
SENT = "sent by a rank"  # the heading of budgets of traffic


@dataclass(frozen=True)
class Finding:
    """A named mistake. ``who`` and ``evidence`` are shown for visible cases only.

    visible: "rank 2 returns the sum, not the mean: divide by world_size (element 0: 8, not 2)"
    hidden:  "a rank returns the sum, not the mean: divide by world_size"
    """

    who: str  # "rank 2", "ranks 0 and 1", "chunk_bounds(10, 4)"
    mistake: str  # starts with a verb; reveals nothing about a case's inputs or sizes
    evidence: str = ""
    who_if_hidden: str = "a rank"  # replaces ``who`` if the case is hidden
    in_full: str = ""  # replaces the whole text if the case is visible, such as an error message
    quotes: bool = False  # the evidence is an error's message: shown again if it differs

    def text(self, hidden: bool) -> str:
        if hidden:
            return f"{self.who_if_hidden} {self.mistake}"
        if self.in_full:
            return shorten(self.in_full)
        evidence = f" ({shorten(self.evidence)})" if self.evidence else ""
        return f"{self.who} {self.mistake}{evidence}"


def shorten(text: str) -> str:
    """Evidence quotes output of student code, which may be of any length; its line stays."""
    quote, space, line = text.rpartition("  [")
    if not space or not line.endswith("]") or len(line) > MAX_QUOTE:
        quote, space, line = text, "", ""
    cut = quote if len(quote) <= MAX_QUOTE else f"{quote[:MAX_QUOTE]} …"
    return f"{cut}{space}{line}"


@dataclass(frozen=True)
class BudgetUsage:
    """A budget and what one run used of it, by rank."""

    label: str
    used: tuple[int, ...]
    limit: tuple[int, ...]
    least: tuple[int, ...]
    heading: str = SENT
    unit: str = "B"
    from_outside: bool = False
    contradicts: str = ""

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
        """Ranks below the minimum of a correct answer: data took a path that is not measured."""
        return [rank for rank, used in enumerate(self.used) if used < self.least[rank]]


@dataclass(frozen=True)
class Attempt:
    """The results of one case: all that the judge and the signs read."""

    case: Case
    inputs: Sequence[Plain]  # by rank
    expected: Sequence[Plain]  # by rank
    outputs: Sequence[Plain]  # by rank; None for ranks that did not finish
    run: Run | None  # partial after an error; None if nothing is known
    error: LaunchError | None
    spent: tuple[BudgetUsage, ...] = ()
    trust: Trust = Trust.OWN  # untrusted: its diagnosis must be the same in every run
    unmeasured: tuple[str, ...] = ()  # labels of budgets for which the run has no measurement

    @property
    def calls(self) -> Sequence[Call]:
        """The recorded calls of all ranks; none if there was no run."""
        return self.run.calls if self.run else ()

    def calls_of(self, rank: int) -> list[Call]:
        return self.run.calls_of(rank) if self.run else []


@dataclass(frozen=True)
class Curves:
    """Values after each step, actual and expected, for the plot in the feedback."""

    title: str
    got: Mapping[str, Sequence[float]]  # by name: "rank 0", "your weight"
    expected: Sequence[float] = ()
    level: float | None = None  # the level they should reach, if only that is known
