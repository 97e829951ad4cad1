"""Grading progress: on a terminal a line redrawn each second, elsewhere a line for each event, and
for each minute without one."""

from __future__ import annotations

import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

from autograder.grading.record.record import Record, Task

REDRAW_S = 1.0
QUIET_S = 60.0
STRAGGLER = 3.0  # running for this many times the mean
MOST_NAMES = 4
MAX_CHARS = 160


class Progress:
    """A context manager that redraws the line; ``start`` may come from any thread."""

    def __init__(
        self,
        total: int,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``clock``: seconds."""
        self.total = total
        self._out = out or sys.stdout
        self._live = self._out.isatty()
        self._clock = clock
        self._start_s = self._printed_s = clock()
        self._running: dict[str, float] = {}  # {student: start time}
        self._took_s: list[float] = []  # of those that are graded
        self._writing = threading.Lock()
        self._ended = threading.Event()
        self._redrawing = threading.Thread(target=self._redraw_each_second, daemon=True)

    def __enter__(self) -> Progress:
        self._redrawing.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._redrawing.join()
        if self._live:
            print("\r\x1b[K", end="", file=self._out, flush=True)

    def start(self, task: Task) -> None:
        with self._writing:
            self._running[task.student] = self._clock()
            self._show(f"{task.student}: started", above="")

    def finish(self, record: Record) -> None:
        with self._writing:
            took_s = self._clock() - self._running.pop(record.student, self._clock())
            self._took_s.append(took_s)
            points = f"{record.state}, {sum(record.points.values()):g} points"
            outcome = points if record.is_final else f"{record.state} ({record.reason})"
            line = f"{record.student}: {outcome}, {took_s:.1f} s"
            self._show(f"{line}{self._estimate()}", above="" if record.is_final else f"{line}\n")

    def redraw(self) -> None:
        """Update the line on a terminal; anywhere else, print it if there was none for a minute."""
        with self._writing:
            if self._live:
                self._draw()
            elif self._clock() - self._printed_s >= QUIET_S:
                self._print(self._now())

    def _redraw_each_second(self) -> None:
        while not self._ended.wait(REDRAW_S):
            self.redraw()

    def _show(self, event: str, above: str) -> None:
        """``above``: what stays on a terminal, above the line that is redrawn."""
        if self._live:
            self._draw(above)
        else:
            self._print(f"[{len(self._took_s)}/{self.total}] {event}")

    def _print(self, line: str) -> None:
        self._printed_s = self._clock()
        print(line, file=self._out, flush=True)

    def _draw(self, above: str = "") -> None:
        width = min(shutil.get_terminal_size().columns - 1, MAX_CHARS)  # a wrapped line would stay
        print(f"\r\x1b[K{above}{self._now()[:width]}", end="", file=self._out, flush=True)

    def _now(self) -> str:
        return (
            f"{len(self._took_s)}/{self.total} graded{self._estimate()} · {self._shown_running()}"
        )

    def _shown_running(self) -> str:
        """ "running: eve 2:10, bob 0:03 and 2 more": the longest first."""
        now_s = self._clock()
        longest = sorted(self._running.items(), key=lambda item: item[1])
        shown = [f"{name} {_clock_text(now_s - start_s)}" for name, start_s in longest[:MOST_NAMES]]
        more = f" and {len(longest) - MOST_NAMES} more" if longest[MOST_NAMES:] else ""
        return f"running: {', '.join(shown)}{more}" if shown else "idle"

    def _estimate(self) -> str:
        """ " · 0.4 per s · 12:31 left"; empty until one is graded, and once only stragglers run.

        A straggler, such as a submission that hangs, may end at any time. It is left out: neither
        its own time nor its worker counts. The others take the mean of those graded so far.
        """
        now_s = self._clock()
        waiting = self.total - len(self._took_s) - len(self._running)
        mean_s = statistics.fmean(self._took_s) if self._took_s else 0.0
        spent = [now_s - start_s for start_s in self._running.values()]
        in_time = [each_s for each_s in spent if each_s <= STRAGGLER * mean_s]
        if mean_s <= 0 or not (waiting or in_time):
            return ""
        work_s = waiting * mean_s + sum(max(mean_s - each_s, 0.0) for each_s in in_time)
        rate = len(self._took_s) / (now_s - self._start_s)
        return f" · {rate:.2g} per s · {_clock_text(work_s / max(len(in_time), 1))} left"


def _clock_text(seconds: float) -> str:
    """ "0:03", "2:10", "1:02:10"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
