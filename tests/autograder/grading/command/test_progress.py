"""What an instructor sees while a class is graded, by a clock that the test sets."""

from __future__ import annotations

import io

import pytest

from autograder.grading.command.progress import Progress
from autograder.grading.record.record import GRADED, INFRASTRUCTURE_ERROR, Record, Task


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    @property
    def line(self) -> str:
        """As the last redraw left it."""
        return self.getvalue().rpartition("\x1b[K")[2]


def task(student: str) -> Task:
    return Task("03_ring", student, None, "", {}, 1, {}, "")


def record(student: str, state: str = GRADED, reason: str = "") -> Record:
    return Record("03_ring", student, "k", "h", state, reason, points={"check_a": 2.0})  # type: ignore[arg-type]


def test_a_hang_is_named_with_its_time_and_does_not_stop_the_estimate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    clock, terminal = Clock(), Terminal()
    progress = Progress(8, terminal, clock)
    for student in ("eve", "ann"):
        progress.start(task(student))
    assert terminal.line == "0/8 graded · running: eve 0:00, ann 0:00"
    clock.now_s = 10
    progress.finish(record("ann"))
    progress.start(task("bob"))
    # 5 wait, eve and bob are running: 10 s each on two workers.
    assert terminal.line == "1/8 graded · 0.1 per s · 0:30 left · running: eve 0:10, bob 0:00"

    clock.now_s = 15
    progress.redraw()
    assert "0:28 left · running: eve 0:15, bob 0:05" in terminal.line

    for second, done, started in ((20, "bob", "cid"), (30, "cid", "dan"), (40, "dan", "fay")):
        clock.now_s = second
        progress.finish(record(done))
        progress.start(task(started))
    # eve hangs: 2 wait and fay is running, all on the other worker.
    assert "4/8 graded · 0.1 per s · 0:30 left · running: eve 0:40, fay 0:00" in terminal.line
    clock.now_s = 48
    progress.redraw()
    assert "0:22 left · running: eve 0:48, fay 0:08" in terminal.line

    for second, done, started in ((50, "fay", "gus"), (60, "gus", "hal"), (70, "hal", "")):
        clock.now_s = second
        progress.finish(record(done))
        if started:
            progress.start(task(started))
    clock.now_s = 3730
    progress.redraw()
    assert terminal.line == "7/8 graded · running: eve 1:02:10"  # no estimate

    progress.finish(record("eve", INFRASTRUCTURE_ERROR, "the disk is full"))
    assert "eve: infrastructure error (the disk is full), 3730.0 s\n8/8" in terminal.getvalue()
    assert terminal.line.endswith("8/8 graded · idle")


def test_the_line_fits_the_terminal_and_disappears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    terminal = Terminal()
    with Progress(9, terminal, Clock()) as progress:
        for number in range(6):
            progress.start(task(f"student-{number}"))
        assert len(terminal.line) == 39
        monkeypatch.setenv("COLUMNS", "200")
        progress.redraw()
        assert terminal.line.endswith("student-3 0:00 and 2 more")
    assert terminal.line == ""


def test_a_pipe_gets_one_line_for_each_event_and_quiet_minute() -> None:
    clock, pipe = Clock(), io.StringIO()
    with Progress(3, pipe, clock) as progress:
        progress.start(task("ann"))
        progress.start(task("eve"))
        clock.now_s = 4
        progress.redraw()
        progress.finish(record("ann"))
        for clock.now_s in range(5, 126):  # type: ignore[assignment]
            progress.redraw()
        clock.now_s = 150
        progress.finish(record("eve", INFRASTRUCTURE_ERROR, "no memory"))
    assert pipe.getvalue().splitlines() == [
        "[0/3] ann: started",
        "[0/3] eve: started",
        "[1/3] ann: graded, 2 points, 4.0 s · 0.25 per s · 0:04 left",
        "1/3 graded · 0.016 per s · 0:04 left · running: eve 1:04",
        "1/3 graded · 0.0081 per s · 0:04 left · running: eve 2:04",
        "[2/3] eve: infrastructure error (no memory), 150.0 s · 0.013 per s · 1:17 left",
    ]
