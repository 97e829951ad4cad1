"""An answer on its way from the notebook to where it is decided: a cloudpickle, of some size."""

from __future__ import annotations

import textwrap
from typing import Any

from shardlab.ranks import codec

LINE_CHARS = 88  # fit into Validate's dialogue at JupyterLab's usual size
MAX_ANSWER_BYTES = 64_000_000


class CheckFailed(AssertionError):
    """An answer falls short; nbgrader's Validate shows the message, which says where and why."""

    def _render_traceback_(self) -> list[str]:
        """IPython's hook: the table above has said the rest, and no frame here is the student's."""
        # In lines of its own: Validate's dialogue shows it as it is and wraps nothing.
        lines = textwrap.wrap(f"CheckFailed: {self}", LINE_CHARS, break_long_words=False)
        return ["\n".join(lines).replace("CheckFailed", "\x1b[31mCheckFailed\x1b[0m", 1)]


def pickled(answer: str, subject: Any) -> bytes:
    """Raises CheckFailed where the ``answer`` cannot travel."""
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
