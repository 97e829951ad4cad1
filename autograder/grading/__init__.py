"""What nbgrader runs in place of its own reading, cleaning and executing of submissions.

nbgrader_config.py names these three; collecting, the gradebook, formgrader, feedback and export
stay nbgrader's.  No student code runs in this process: see ``kernel`` for where it does.
"""

from importlib import import_module
from typing import Any

_HOMES = {"RunAndDecide": "decide", "RebuildSubmission": "steps", "SubmissionReader": "steps"}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    # Only when asked for: a container's processes and workers import from here, and no nbgrader.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
