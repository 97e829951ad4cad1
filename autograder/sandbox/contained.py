"""The grader's interface to one process that runs a notebook's cells (guest/kernel.py)."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Ending:
    """How a process ended: "killed by SIGSEGV", "it exited with status 3", "out of memory"."""

    sentence: str
    by_limit: bool = False  # whether a resource limit ended it

    @classmethod
    def from_exit_code(cls, code: int | None) -> Ending:
        """``code``: as in subprocess; None if unknown."""
        if code is None:
            return cls("it disappeared")
        if code >= 0:
            return cls(f"it exited with status {code}")
        if -code == signal.SIGXCPU:
            return cls("it used up its CPU time", by_limit=True)
        names = {each.value: each.name for each in signal.Signals}
        name = names.get(-code, f"signal {-code}")
        return cls(f"killed by {name}", by_limit=-code == signal.SIGXFSZ)


class ContainedCells(Protocol):
    """The process that runs the cells and all processes it starts; they are killed together."""

    @property
    def sock(self) -> socket.socket:
        """A stream socket to ``kernel.main``. The owner closes it."""

    @property
    def pid(self) -> int:
        """Of the process that runs the cells, in the grader's PID namespace."""

    def interrupt(self) -> None:
        """SIGINT to that process; does nothing if it has ended."""

    def kill(self) -> None:
        """Kill everything in the container and wait; does nothing if it has ended."""

    def why_ended(self) -> Ending:
        """Call it after the process has ended by itself or by ``kill``."""

    def cpu_s(self) -> float:
        """CPU time of everything in the container so far, ended processes included."""


Start = Callable[[], AbstractContextManager[ContainedCells]]
