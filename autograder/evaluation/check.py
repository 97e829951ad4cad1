"""``check``: what a graded cell calls, in the student's kernel, and the one output it makes."""

from __future__ import annotations

import sys
from typing import Any

from autograder import exercises
from autograder.evaluation.decide import decide
from autograder.evaluation.present import as_html, as_text, progress_html
from autograder.evaluation.trial import VISIBLE_SEED
from autograder.evaluation.verdict import Verdict
from autograder.exercise import Case
from autograder.guest.answer import CheckFailed, pickled
from shardlab.ranks.trust import Trust


def check(name: str, subject: Any) -> None:
    """Put an answer through its visible cases and show how it did.

    ``name`` is the exercise's ("ring_all_reduce.reduce_scatter"), ``subject`` whatever was asked
    for: a function, a class, plain data, a number.  Raises CheckFailed where it falls short and
    KeyError for a name that no exercise has.

    When a grader executes the cell, guest/kernel.py's ``check`` stands here instead: it passes the
    pickled answer to the grader's process.
    """
    exercise = exercises.load(name)
    if subject is None or subject is ...:  # the blank of a number or of plain data
        verdict = Verdict(name, exercise.points, (), VISIBLE_SEED, unwritten=True)
    else:
        blob = pickled(exercise.answer, subject)
        screen = Screen(sum(not case.hidden for case in exercise.cases))
        verdict = decide(
            exercise, blob, VISIBLE_SEED, trust=Trust.OWN, on_case=screen.show_progress
        )
        screen.show(verdict)
    if not verdict.passed:
        raise CheckFailed(verdict.headline)


class Screen:
    """A notebook's output area, where the table takes the progress's place; or a terminal, which
    gets the table alone."""

    def __init__(self, cases: int) -> None:
        self.cases = cases
        self.handle: Any = None
        ipython = sys.modules.get("IPython")
        self.is_notebook = hasattr(ipython.get_ipython() if ipython else None, "kernel")

    def show_progress(self, done: int, case: Case) -> None:
        """At once, for each case: one that hangs takes seconds, and is the one to know about."""
        if self.is_notebook:
            line = f"running case {done + 1} of {self.cases}: {case.name}"
            self._put(progress_html(line), line)

    def show(self, verdict: Verdict) -> None:
        if self.is_notebook:
            self._put(as_html(verdict), as_text(verdict))
        else:
            print(as_text(verdict))

    def _put(self, html: str, text: str) -> None:
        from IPython.display import display

        bundle = {"text/html": html, "text/plain": text}
        if self.handle is None:
            self.handle = display(bundle, raw=True, display_id=True)
        else:
            self.handle.update(bundle, raw=True)
