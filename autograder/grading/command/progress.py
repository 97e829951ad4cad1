"""Grading progress: one line that is updated on a terminal, otherwise a line for each step."""

from __future__ import annotations

import sys
import threading
import time
from datetime import timedelta

from autograder.grading.record.record import Record, Task


class Progress:
    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self._live = sys.stdout.isatty()
        self._began_s = time.monotonic()
        self._running: dict[str, float] = {}  # {student: start time}
        self._writing = threading.Lock()

    def start(self, task: Task) -> None:
        """May be called from any thread."""
        with self._writing:
            self._running[task.student] = time.monotonic()
            self._show("" if self._live else f"{task.student}: started")

    def finish(self, record: Record) -> None:
        with self._writing:
            self.done += 1
            took_s = time.monotonic() - self._running.pop(record.student, time.monotonic())
            points = f"{record.state}, {sum(record.points.values()):g} points"
            outcome = points if record.is_final else f"{record.state} ({record.reason})"
            line = f"{record.student}: {outcome}, {took_s:.1f} s"
            on_terminal = "" if record.is_final else line
            self._show(on_terminal if self._live else f"{line}{self._eta()}")

    def end(self) -> None:
        if self._live:
            print("\r\x1b[K", end="", flush=True)

    def _show(self, line: str) -> None:
        """Print ``line``; on a terminal, update the status line below it."""
        if not self._live:
            print(f"[{self.done}/{self.total}] {line}", flush=True)
            return
        names = list(self._running)
        running = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
        now = f"{self.done}/{self.total} graded{self._eta()} · grading {running or 'nothing'}"
        above = f"{line}\n" if line else ""
        print(f"\r\x1b[K{above}{now[:110]}", end="", flush=True)

    def _eta(self) -> str:
        """ " · 0.4 per s · 0:12:31 left"; empty until one is done."""
        spent_s = time.monotonic() - self._began_s
        if not 0 < self.done < self.total or spent_s <= 0:
            return ""
        left = timedelta(seconds=round(spent_s / self.done * (self.total - self.done)))
        return f" · {self.done / spent_s:.2g} per s · {left} left"
