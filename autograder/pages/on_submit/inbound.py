"""The exchange's inbound folder, in which `nbgrader submit` creates a folder per submission.

Every student can write there, so a folder's name proves nothing.
"""

from __future__ import annotations

import os
import pwd
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from autograder.grading.course_time import to_utc
from autograder.grading.submission.files import Unreadable, read_regular_file
from autograder.grading.submission.folders import SECRET
from autograder.grading.submission.names import why_unusable

INCOMPLETE_S = 60.0  # after this time an incomplete submission is reported

Key = tuple[str, str]  # student, lab


class Ignored(Exception):
    """The message says why a folder is not a submission."""


class Incomplete(Exception):
    """`nbgrader submit` may still be writing it."""


class Inbound:
    """Remembers what it has seen, so that polling costs little more than listing the folder."""

    def __init__(
        self,
        folder: Path,
        labs: Collection[str],
        check_owner: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``check_owner``: ignore folders that belong to a user other than the student."""
        self.folder = folder
        # {(student, lab): names of all folders found so far}
        self.submissions: dict[Key, set[str]] = defaultdict(set)
        self._labs, self._check_owner, self._clock = labs, check_owner, clock
        self._seen: set[str] = set()
        self._incomplete: dict[str, float] = {}  # {name: since when}

    def poll(self) -> tuple[list[Key], list[str]]:
        """(who has submitted something new, a sentence for each ignored folder).

        The first to submit comes first. Raises OSError.
        """
        new: dict[Key, str] = {}
        ignored = []
        names = set(os.listdir(self.folder)) - self._seen
        for student, lab, at, name in sorted(self._of_labs(names), key=lambda found: found[2]):
            try:
                self._require_submission(student, at, name)
            except Incomplete:
                continue
            except Ignored as error:
                ignored.append(f"{name!r} is ignored: {error}")
            else:
                self.submissions[student, lab].add(name)
                new[student, lab] = name
            self._seen.add(name)
        return [*new], ignored

    def _of_labs(self, names: set[str]) -> Iterator[tuple[str, str, str, str]]:
        """(student, lab, time, name) of submissions to the labs; others are ignored from now on."""
        for name in names:
            parts = name.rsplit("+", 3)
            if len(parts) >= 3 and parts[1] in self._labs:
                yield parts[0], parts[1], parts[2], name
            else:
                self._seen.add(name)

    def _require_submission(self, student: str, at: str, name: str) -> None:
        """Raises Ignored or Incomplete."""
        path = self.folder / name
        if why := why_unusable(student) if student else "is empty":
            raise Ignored(f"the student's name {why}")
        try:
            to_utc(at)
        except (ValueError, OverflowError) as error:
            raise Ignored("its name has no time") from error
        if path.is_symlink() or not path.is_dir():
            raise Ignored("it is not a folder")
        if self._check_owner and (owner := _owner(path)) != student:
            raise Ignored(
                f"it belongs to the user {owner} (if users are not students here, set "
                "c.ExchangeCollect.check_owner = False in nbgrader_config.py)"
            )
        if not _is_complete(path):
            since = self._incomplete.setdefault(name, self._clock())
            if self._clock() - since < INCOMPLETE_S:
                raise Incomplete
            raise Ignored(f"it is incomplete: {SECRET} is missing, or a file cannot be read")


def _owner(path: Path) -> str:
    number = path.lstat().st_uid
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _is_complete(folder: Path) -> bool:
    """nbgrader writes the secret last, then makes all files readable."""
    try:
        secret = read_regular_file(folder / SECRET, 1_000).strip()
        return bool(secret) and all(os.access(each.path, os.R_OK) for each in os.scandir(folder))
    except (Unreadable, OSError):
        return False
