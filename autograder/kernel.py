"""``check``: what a graded cell calls, in the student's kernel."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import Any

import cloudpickle

from autograder.exercise import Exercise
from autograder.verdict import Verdict

LINE_CHARS = 88  # fit into Validate's dialogue at JupyterLab's usual size


class CheckFailed(AssertionError):
    """An answer falls short; nbgrader's Validate shows the message, which says where and why."""

    def _render_traceback_(self) -> list[str]:
        """IPython's hook: the table above has said the rest, and no frame here is the student's."""
        # In lines of its own: Validate's dialogue shows it as it is and wraps nothing.
        lines = textwrap.wrap(f"CheckFailed: {self}", LINE_CHARS, break_long_words=False)
        return ["\n".join(lines).replace("CheckFailed", "\x1b[31mCheckFailed\x1b[0m", 1)]


def check(name: str, subject: Any) -> None:
    """Put an answer through its visible cases and show how it did.

    ``name`` is the exercise's ("ring_all_reduce.reduce_scatter"), ``subject`` whatever was asked
    for: a function, a class, plain data, a number.  Raises CheckFailed where it falls short and
    KeyError for a name that no exercise has.

    In a kernel that a grader started (SHARDLAB_DEPOSIT names its folder) the answer is written
    there instead, to be decided where no student code runs.
    """
    deposit = os.environ.get("SHARDLAB_DEPOSIT")
    if deposit:  # the exercises are not to be had there: a name is a name
        _deposit(Path(deposit) / f"{name}.subject", _pickled(name, subject))
        return
    from autograder import exercises

    exercise = exercises.load(name)
    verdict = _decide(exercise, subject)
    if not verdict.passed:
        raise CheckFailed(verdict.headline) from None


def _pickled(name: str, subject: Any) -> bytes:
    try:
        blob: bytes = cloudpickle.dumps(subject)
    except Exception as error:
        _, _, answer = name.partition(".")
        raise CheckFailed(
            f"{answer} cannot travel to the ranks ({type(error).__name__}: {error}). "
            "Does it hold on to a lock, a file or a running process?"
        ) from None
    return blob


def _deposit(path: Path, blob: bytes) -> None:
    """All of it or nothing, whenever the kernel dies."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_bytes(blob)
    os.replace(part, path)


def _decide(exercise: Exercise, subject: Any) -> Verdict:
    # Only here: a grader's kernel deposits, and needs neither ranks nor tables.
    from autograder.grade import VISIBLE_SEED, decide
    from autograder.screen import Screen

    if subject is None or subject is ...:  # the blank of a number or of plain data
        return Verdict(exercise.name, exercise.points, (), VISIBLE_SEED, unwritten=True)
    screen = Screen(sum(not case.hidden for case in exercise.cases))
    verdict = decide(
        exercise,
        _pickled(exercise.name, subject),
        VISIBLE_SEED,
        hidden=False,
        stop_at_hang=True,
        on_case=screen.show_progress,
    )
    screen.show(verdict)
    return verdict
