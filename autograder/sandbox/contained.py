"""What the outside holds of one process that runs a notebook's cells (guest/kernel.py)."""

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
    by_limit: bool = False  # memory, processors' time, processes: not its own doing alone

    @classmethod
    def by(cls, code: int | None) -> Ending:
        """``code``: as subprocess tells it, None where nobody knows."""
        if code is None:
            return cls("it is gone")
        if code >= 0:
            return cls(f"it exited with status {code}")
        if -code == signal.SIGXCPU:
            return cls("it used up its processor time", by_limit=True)
        names = {each.value: each.name for each in signal.Signals}
        name = names.get(-code, f"signal {-code}")
        return cls(f"killed by {name}", by_limit=-code == signal.SIGXFSZ)


class ContainedCells(Protocol):
    """One cells process and all that it starts: ended together, and nothing of it survives."""

    @property
    def sock(self) -> socket.socket:
        """A stream socket; its other end is what its ``main`` was given. Closed by the owner."""

    @property
    def pid(self) -> int:
        """Of the process that runs the cells, as seen from here."""

    def interrupt(self) -> None:
        """SIGINT to that process; nothing where it has ended."""

    def kill(self) -> None:
        """End everything in the container and wait until all is gone; nothing where it is."""

    def why_ended(self) -> Ending:
        """Once the process has ended by itself or by ``kill``."""

    def cpu_s(self) -> float:
        """Processor time used so far by everything in the container, the dead included."""


Start = Callable[[], AbstractContextManager[ContainedCells]]
