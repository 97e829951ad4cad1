"""What can go wrong in a launch: the first line names the guilty rank and its line of code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardlab.run import Run


@dataclass(frozen=True)
class Waiting:
    """One row of a hang's table: what a rank was in when everything stopped."""

    rank: int
    state: str  # "waiting", "finished", "computing", "dead"
    call: str  # "recv", "all_reduce #3", "" where it is in no call
    waits_for: tuple[int, ...]  # global ranks
    source: str  # "cell 5, line 3: dist.recv(...)", "" where unknown


class LaunchError(Exception):
    """A launch that did not return an output from every rank.

    ``run`` holds what is known of it: outputs of the ranks that finished, all printed text,
    recorded calls and traffic.  ``str(error)`` starts with ``headline``, one line.
    """

    run: Run | None = None

    def __init__(self, headline: str, detail: str = "") -> None:
        super().__init__(headline + ("\n\n" + detail if detail else ""))
        self.headline = headline
        self.detail = detail

    def _render_traceback_(self) -> list[str]:
        """IPython's hook: the message alone, without the frames of the launcher itself."""
        return f"\x1b[31m{type(self).__name__}\x1b[0m: {self}".split("\n")


class RankError(LaunchError):
    """The first rank that failed: by an exception, an exit or a signal."""

    def __init__(
        self, headline: str, detail: str = "", *, rank: int, kind: str, message: str = ""
    ) -> None:
        super().__init__(headline, detail)
        self.rank = rank
        self.kind = kind  # exception class name, "exit" or a signal's name ("SIGSEGV")
        self.message = message  # the exception's own text


class DeadlockError(LaunchError):
    """Ranks that wait for each other, or for one that will never come."""

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
        self.cycle = cycle  # ranks in waiting order; empty where no cycle is the cause


class RunTimeout(LaunchError):
    """The run took longer than ``timeout_s`` though some rank was still at work."""

    def __init__(self, headline: str, detail: str = "", *, table: tuple[Waiting, ...] = ()) -> None:
        super().__init__(headline, detail)
        self.table = table


class MachineTooBusy(LaunchError):
    """The ranks hardly got a processor: nothing is known of how the run would have gone."""
