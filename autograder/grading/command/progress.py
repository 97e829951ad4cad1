"""How far a class's grading is: one line that changes on a terminal, else a line for each step."""

from __future__ import annotations

import threading
import time
from typing import TextIO

from autograder.grading.record.record import Record, Task


class Progress:
    def __init__(self, total: int, out: TextIO) -> None:
        self.total = total
        self.done = 0
        self._out = out
        self._live = out.isatty()
        self._began_s = time.monotonic()
        self._at_work: dict[str, float] = {}  # student -> since when
        self._writing = threading.Lock()

    def start(self, task: Task) -> None:
        """Called in any thread."""
        with self._writing:
            self._at_work[task.student] = time.monotonic()
            if self._live:
                self._show()
            else:
                self._say(f"{task.student}: started")

    def finish(self, record: Record) -> None:
        with self._writing:
            self.done += 1
            took_s = time.monotonic() - self._at_work.pop(record.student, time.monotonic())
            if self._live:
                if not record.is_final:
                    self._say(f"{record.student}: {record.state}: {record.reason}")
                self._show()
            else:
                self._say(f"{record.student}: {outcome(record)}, {took_s:.1f} s{self._eta()}")

    def say(self, line: str) -> None:
        with self._writing:
            self._say(line)

    def end(self) -> None:
        if self._live:
            self._out.write("\r\x1b[K")
            self._out.flush()

    def _say(self, line: str) -> None:
        clear = "\r\x1b[K" if self._live else f"[{self.done}/{self.total}] "
        self._out.write(f"{clear}{line}\n")
        self._out.flush()

    def _show(self) -> None:
        names = list(self._at_work)
        at_work = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
        line = f"{self.done}/{self.total} graded{self._eta()} · at work on {at_work or 'nothing'}"
        self._out.write(f"\r\x1b[K{line[:110]}")
        self._out.flush()

    def _eta(self) -> str:
        """ " · 0.4 per s · 12:31 to go", once there is something to go by."""
        spent_s = time.monotonic() - self._began_s
        if not 0 < self.done < self.total or spent_s <= 0:
            return ""
        left_s = spent_s / self.done * (self.total - self.done)
        return f" · {self.done / spent_s:.2g} per s · {clock(left_s)} to go"


def outcome(record: Record) -> str:
    """ "graded, 14 points" """
    if not record.is_final:
        return f"{record.state} ({record.reason})"
    return f"{record.state}, {sum(record.points.values()):g} points"


def clock(seconds: float) -> str:
    """2:05, or 1:02:05."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
