"""Errors of a launch: the first line names the rank at fault and its line of code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardlab.run import Run


@dataclass(frozen=True)
class Waiting:
    """One row of the table shown for a hang: what a rank was doing when the run was stopped."""

    rank: int
    # "waiting" in a call, "called" it and returned, "computing", "blocked" in another function,
    # "finished"
    state: str
    call: str  # "recv from rank 1", "barrier (collective 3 of its group)"; "" outside of a call
    waits_for: tuple[int, ...]  # global ranks
    source: str  # "cell 5, line 3: dist.recv(...)"; "" if unknown
    after: str = ""  # the last call of a rank that has finished, with its line


class LaunchError(Exception):
    """A launch that did not return an output from every rank.

    ``run`` is the partial result: outputs of the ranks that finished, all printed text, recorded
    calls and traffic.  ``str(error)`` starts with ``headline``, one line.
    """

    run: Run | None = None

    def __init__(self, headline: str, detail: str = "") -> None:
        super().__init__(headline + ("\n\n" + detail if detail else ""))
        self.headline = headline
        self.detail = detail

    def _render_traceback_(self) -> list[str]:
        """IPython's hook: the message alone, without the launcher's own frames."""
        return f"{type(self).__name__}: {self}".split("\n")


class NodesUnavailable(LaunchError):
    """This machine cannot make nodes; the headline says what is missing and how to allow it."""


class RankError(LaunchError):
    """The first rank that failed: by an exception, an exit or a signal."""

    def __init__(
        self,
        headline: str,
        detail: str = "",
        *,
        rank: int,
        kind: str,
        message: str = "",
        source: str = "",
        in_user_code: bool = False,
    ) -> None:
        super().__init__(headline, detail)
        self.rank = rank
        self.kind = kind  # exception class name, "exit" or a signal's name ("SIGSEGV")
        self.message = message  # the exception's own text
        self.source = (
            source  # of an exception: the innermost line of user code; "" if there is none
        )
        self.in_user_code = in_user_code  # whether that line itself raised it, not a library


class DeadlockError(LaunchError):
    """Ranks that wait for each other, or for a rank that will never arrive."""

    def __init__(
        self,
        headline: str,
        detail: str = "",
        *,
        table: tuple[Waiting, ...] = (),
        cycle: tuple[int, ...] = (),
    ) -> None:
        super().__init__(headline, detail)
        self.table = table
        self.cycle = cycle  # each rank waits for the next; empty if there is no cycle


class RunTimeout(LaunchError):
    """The run took longer than ``timeout_s``: some rank was still computing, or blocked."""

    def __init__(
        self,
        headline: str,
        detail: str = "",
        *,
        table: tuple[Waiting, ...] = (),
        cpu_s: float = 0.0,
    ) -> None:
        super().__init__(headline, detail)
        self.table = table
        self.cpu_s = cpu_s  # used by all ranks together; 0 if it was not measured


class MachineTooBusy(LaunchError):
    """The ranks got too little processor time to say how the run would have ended."""
