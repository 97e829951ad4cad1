"""A check cell that runs before its answer's cell: a sentence in place of a NameError."""

from __future__ import annotations

import linecache
import re
import sys
from types import TracebackType
from typing import Any

from autograder.guest.answer import CheckFailed


def explain_undefined_answers() -> None:
    """In this notebook, from now on. Does nothing outside of IPython."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    if shell is not None and not shell.custom_exceptions:
        shell.set_custom_exc((NameError,), _show)


def _show(
    shell: Any, kind: type, error: NameError, tb: TracebackType, tb_offset: int | None = None
) -> None:
    shown: tuple[type, Exception, TracebackType] = kind, error, tb
    if _is_checked(error.name or "", tb):
        sentence = f"{error.name} is not defined yet: run the cell above that defines it, then this"
        shown = CheckFailed, CheckFailed(f"{sentence} one."), tb
    shell.showtraceback(shown, tb_offset=tb_offset, running_compiled_code=True)


def _is_checked(name: str, tb: TracebackType) -> bool:
    """Whether the line of the cell that raised is ``check("...", name)``."""
    while tb.tb_next is not None:
        tb = tb.tb_next
    line = linecache.getline(tb.tb_frame.f_code.co_filename, tb.tb_lineno)
    return re.match(rf"check\(.*, {re.escape(name)}\)$", line.strip()) is not None
