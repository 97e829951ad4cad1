"""``check``, which a graded cell calls in the student's kernel, and the table it shows."""

from __future__ import annotations

import sys
from typing import Any

from autograder import exercises
from autograder.course.checks import remember
from autograder.course.tries import Tries
from autograder.evaluation.decide import decide
from autograder.evaluation.present import as_html, as_text, progress_html
from autograder.evaluation.trial import VISIBLE_SEED
from autograder.evaluation.undefined import explain_undefined_answers
from autograder.evaluation.verdict import Verdict
from autograder.exercise import Case
from autograder.guest.answer import CheckFailed, pickled
from shardlab.ranks.trust import Trust


def check(name: str, subject: Any) -> None:
    """Run an answer on its visible cases and show the results.

    ``name`` is the exercise's ("ring_all_reduce.reduce_scatter"); ``subject`` is the answer: a
    function, a class, plain data or a number.  Raises CheckFailed if a case fails and KeyError if
    there is no such exercise.

    The result is also kept on this computer, for the course's front page (course/checks.py). How
    often the check ran is stored with its output, and thus submitted (course/tries.py).

    When a grader executes the cell, guest/kernel.py's ``check`` runs instead: it passes the pickled
    answer to the grader's process.
    """
    exercise = exercises.load(name)
    has_table = False
    if subject is None or subject is ...:  # the placeholder for a number or plain data
        verdict = Verdict(name, exercise.points, (), VISIBLE_SEED, unwritten=True)
    else:
        blob = pickled(exercise.answer, subject)
        output = CheckOutput(sum(not case.hidden for case in exercise.cases))
        verdict = decide(
            exercise, blob, VISIBLE_SEED, trust=Trust.OWN, on_case=output.show_progress
        )
        output.show(verdict, None if verdict.unwritten else _remember(verdict))
        has_table = output.is_notebook
    if not verdict.passed:
        raise CheckFailed(verdict.headline, below_table=verdict.below_table if has_table else "")


def _remember(verdict: Verdict) -> Tries | None:
    failed = [case for case in verdict.cases if case.was_run and not case.passed]
    passed = sum(case.passed for case in verdict.cases)
    mistakes = [case.mistake for case in failed if case.mistake]
    return remember(verdict.exercise, passed, len(verdict.cases), mistakes)


explain_undefined_answers()


class CheckOutput:
    """In a notebook: progress, then the table in its place. In a terminal: the table only."""

    def __init__(self, cases: int) -> None:
        self.cases = cases
        self.handle: Any = None
        ipython = sys.modules.get("IPython")
        self.is_notebook = hasattr(ipython.get_ipython() if ipython else None, "kernel")

    def show_progress(self, done: int, case: Case) -> None:
        """Before each case, so that a student sees which one hangs."""
        if self.is_notebook:
            line = f"running case {done + 1} of {self.cases}: {case.name}"
            self._put(progress_html(line), line)

    def show(self, verdict: Verdict, tries: Tries | None) -> None:
        if self.is_notebook:
            metadata = tries.as_metadata(verdict.exercise) if tries else {}
            self._put(as_html(verdict), as_text(verdict), metadata)
        else:
            print(as_text(verdict))

    def _put(self, html: str, text: str, metadata: dict[str, Any] | None = None) -> None:
        from IPython.display import display

        bundle = {"text/html": html, "text/plain": text}
        if self.handle is None:
            self.handle = display(bundle, raw=True, display_id=True, metadata=metadata)
        else:
            self.handle.update(bundle, raw=True, metadata=metadata)
