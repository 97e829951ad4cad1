"""When a submission was made: the file timestamp.txt next to it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from autograder.grading.course_time import shown, to_utc
from autograder.grading.submission.files import Unreadable, read_regular_file

TIMESTAMP = "timestamp.txt"  # nbgrader's name for it
MAX_BYTES = 1_000_000


class BadTimestamp(Exception):
    """A timestamp.txt that cannot be used: a sentence with its path, and what to write."""


def timestamp_text(folder: Path) -> str:
    """The text of a submission's timestamp.txt, "" without one. Raises BadTimestamp."""
    path = folder / TIMESTAMP
    if not path.exists():
        return ""
    try:
        return read_regular_file(path, MAX_BYTES).decode(errors="replace").strip()
    except Unreadable as error:
        raise BadTimestamp(f"{path} cannot be read: {error}") from error


def submission_time(folder: Path) -> datetime | None:
    """In UTC; None without a timestamp.txt, or with an empty one. Raises BadTimestamp."""
    text = timestamp_text(folder)
    try:
        return to_utc(text) if text else None
    except (ValueError, OverflowError) as error:
        raise BadTimestamp(
            f"{folder / TIMESTAMP} contains {shown(text)}, which is not a time: write one such as "
            "2026-10-02 13:00:00 UTC"
        ) from error
