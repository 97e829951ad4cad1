"""``check``: what a graded cell calls, in the student's kernel."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shardlab.ranks import codec

if TYPE_CHECKING:
    from autograder.exercise import Exercise
    from autograder.verdict import Verdict

LINE_CHARS = 88  # fit into Validate's dialogue at JupyterLab's usual size
MAX_ANSWER_BYTES = 64_000_000

# Where a grader runs the cells (grading/cells.py): takes (exercise's name, cloudpickle).
hand_over: Callable[[str, bytes], None] | None = None


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

    In cells that a grader runs the answer is handed over instead, to be decided where no student
    code runs; there the exercises are out of reach, and a name is only a name.
    """
    if hand_over is not None:
        hand_over(name, _pickled(name.partition(".")[2], subject))
        return
    from autograder import exercises

    exercise = exercises.load(name)
    verdict = _decide(exercise, subject)
    if not verdict.passed:
        raise CheckFailed(verdict.headline) from None


def _pickled(answer: str, subject: Any) -> bytes:
    """Raises CheckFailed where the ``answer`` cannot be handed over."""
    try:
        blob = codec.encode_any(subject)
    except Exception as error:
        raise CheckFailed(
            f"{answer} cannot travel to the ranks ({type(error).__name__}: {error}). "
            "Does it hold on to a lock, a file or a running process?"
        ) from None
    if len(blob) > MAX_ANSWER_BYTES:
        raise CheckFailed(
            f"{answer} is too large to travel to the ranks: {len(blob):,} bytes, and at most "
            f"{MAX_ANSWER_BYTES:,} are taken. Does it hold on to a tensor or a data set?"
        )
    return blob


def _decide(exercise: Exercise, subject: Any) -> Verdict:
    # Only here: a grader's container has neither ranks nor tables.
    from autograder.grade import decide
    from autograder.screen import Screen
    from autograder.trial import VISIBLE_SEED
    from autograder.verdict import Verdict
    from shardlab.ranks.trust import Trust

    if subject is None or subject is ...:  # the blank of a number or of plain data
        return Verdict(exercise.name, exercise.points, (), VISIBLE_SEED, unwritten=True)
    screen = Screen(sum(not case.hidden for case in exercise.cases))
    verdict = decide(
        exercise,
        _pickled(exercise.answer, subject),
        VISIBLE_SEED,
        trust=Trust.OWN,
        on_case=screen.show_progress,
    )
    screen.show(verdict)
    return verdict
