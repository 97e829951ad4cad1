"""The one output of a check: which case runs, then the table in its place."""

from __future__ import annotations

import sys
from typing import Any

from autograder.evaluation.present import as_html, as_text, progress_html
from autograder.evaluation.verdict import Verdict
from autograder.exercise import Case


class Screen:
    """A notebook's output area, or a terminal, which gets the table alone."""

    def __init__(self, cases: int) -> None:
        self.cases = cases
        self.handle: Any = None

    def show_progress(self, done: int, case: Case) -> None:
        """At once, for each case: one that hangs takes seconds, and is the one to know about."""
        if _in_notebook():
            line = f"running case {done + 1} of {self.cases}: {case.name}"
            self._put(progress_html(line), line)

    def show(self, verdict: Verdict) -> None:
        if _in_notebook():
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


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")
