"""Pickles an answer in the notebook for the process that evaluates it."""

from __future__ import annotations

import os
import textwrap
from typing import Any

from shardlab.ranks import codec

STUB = "the answer is still the stub"  # a check that calls it in another process raises this
LINE_CHARS = 88  # fits the Validate dialog at JupyterLab's default size
MAX_ANSWER_BYTES = 64_000_000


class CheckFailed(AssertionError):
    """An answer failed its check; the message says where and why.

    ``below_table`` is shown instead in a notebook whose cell already shows the table of the cases.
    Validate shows no tables.
    """

    def __init__(self, message: str, below_table: str = "") -> None:
        super().__init__(message)
        self.below_table = below_table

    def _render_traceback_(self) -> list[str]:
        """IPython's hook: no frames, because none of them is the student's."""
        is_validating = "NBGRADER_VALIDATING" in os.environ  # set by nbgrader's Validate
        shown = str(self) if is_validating else self.below_table or str(self)
        # Wrapped here: the Validate dialog does not wrap.
        lines = textwrap.wrap(f"CheckFailed: {shown}", LINE_CHARS, break_long_words=False)
        return ["\n".join(lines)]


def pickled(answer: str, subject: Any) -> bytes:
    """Raises CheckFailed if the answer cannot be pickled or is too large."""
    try:
        blob = codec.encode_any(subject)
    except Exception as error:
        raise CheckFailed(
            f"{answer} cannot be sent to the ranks ({type(error).__name__}: {error}). "
            "Does it reference a lock, an open file or a running process?"
        ) from None
    if len(blob) > MAX_ANSWER_BYTES:
        raise CheckFailed(
            f"{answer} is too large to send to the ranks: {len(blob):,} bytes; the limit is "
            f"{MAX_ANSWER_BYTES:,}. Does it reference a tensor or a data set?"
        )
    return blob
