"""The submissions of a lab: the newest in grading/submitted, all others in grading/earlier."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from nbgrader.coursedir import CourseDirectory

from autograder.grading.collect.files import File
from autograder.grading.submission.files import Unreadable
from autograder.grading.submission.folders import grading_folder, submission_folder
from autograder.grading.submission.lab_cells import cells_of_lab, lab_of
from autograder.grading.submission.names import why_unusable
from autograder.grading.submission.reader import find_notebook, read_content, read_notebook
from autograder.grading.submission.timestamp import TIMESTAMP, BadTimestamp, submission_time

EARLIER = "earlier"
MAX_KEPT = 20  # files of one student that are no notebooks
MAX_NAME = 100  # characters of a file that is no notebook
UNUSUAL = re.compile(r"[^\w .()-]")


@dataclass(frozen=True)
class Version:
    """One submission of a student."""

    digest: str  # of its notebook
    time: datetime  # UTC: when it was submitted; if unknown, a time by which it was
    is_submission_time: bool = False


@dataclass(frozen=True)
class Plan:
    """What collecting changes for one student."""

    becomes_current: bool  # the newest file of the download
    replaces: datetime | None  # the time of the submission that moves to grading/earlier
    to_earlier: tuple[int, ...]  # which of the download's files are kept there

    @property
    def outcome(self) -> str:
        if self.becomes_current:
            return "new" if self.replaces is None else "resubmitted"
        return "earlier" if self.to_earlier else "unchanged"


class Store:
    def __init__(self, course: CourseDirectory, lab: str) -> None:
        self.course, self.lab = course, lab

    def plan(self, student: str, offered: Sequence[Version]) -> Plan:
        """``offered``: all of a download, the newest last. Changes nothing.

        Raises Unreadable if the student's folder cannot be used.
        """
        if why := "contains /" if "/" in student else why_unusable(student):
            raise Unreadable(f"{student!r} cannot be the name of a student's folder: it {why}")
        folder = submission_folder(self.course, self.lab, student)
        if folder.is_symlink() or folder.parent.is_symlink():
            raise Unreadable(f"{folder} is a link: replace it by a folder")
        current = self._version(folder) if folder.exists() else None
        past = [self._version(each) for each in self._past(student)]
        newest = offered[-1]
        becomes_current = current is None or (
            newest.digest != current.digest
            and newest.time >= current.time
            and (newest.digest, newest.time) not in [(each.digest, each.time) for each in past]
        )
        known = {each.digest for each in (*past, *([current] if current else []))}
        known |= {newest.digest} if becomes_current else set()
        to_earlier = []
        for index, version in enumerate(offered):
            if version.digest not in known:
                known.add(version.digest)
                to_earlier.append(index)
        replaces = current.time if becomes_current and current else None
        return Plan(becomes_current, replaces, tuple(to_earlier))

    def keep_earlier(self, student: str, version: Version, content: bytes) -> None:
        """Add a folder to the student's history."""
        self._write(self._new_folder(student, version.time), version, content)

    def make_current(self, student: str, version: Version, content: bytes) -> None:
        """The submission that was current moves to the history, with everything in its folder.

        If it is interrupted between the two renames, the next run writes the submission again.
        """
        folder = submission_folder(self.course, self.lab, student)
        partial = folder.with_name(f".{self.lab}.partial")
        self._write(partial, version, content)
        if folder.exists():
            earlier = self._new_folder(student, self._version(folder).time)
            earlier.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(folder, earlier)
        partial.rename(folder)

    def keep_unusable(self, student: str, files: Sequence[File]) -> None:
        """What was submitted instead of a notebook, unless there is a submission already: grading
        then says why it gives no points."""
        folder = submission_folder(self.course, self.lab, student)
        if folder.exists() or "/" in student or why_unusable(student):
            return
        partial = folder.with_name(f".{self.lab}.{os.getpid()}")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for file in files[:MAX_KEPT]:
            name = UNUSUAL.sub("_", file.path.name)[-MAX_NAME:].lstrip(".") or "file"
            try:
                (partial / name).write_bytes(file.read())
            except Unreadable as error:
                (partial / f"{name}.not_collected.txt").write_text(f"{file.shown}: {error}\n")
        newest = max(file.time for file in files).timestamp()
        os.utime(partial, (newest, newest))
        partial.rename(folder)

    def copy_to_earlier(self, student: str) -> Path:
        """A copy of the current submission, with everything in its folder, in the history."""
        folder = submission_folder(self.course, self.lab, student)
        copy = self._new_folder(student, self._version(folder).time)
        copy.parent.mkdir(parents=True, exist_ok=True)
        partial = copy.with_name(f".{copy.name}.{os.getpid()}")
        shutil.copytree(folder, partial, symlinks=True)
        partial.rename(copy)
        return copy

    def is_current(self, student: str, copy: Path) -> bool:
        """Whether the current submission is still the one that ``copy`` was made of."""
        folder = submission_folder(self.course, self.lab, student)
        return self._version(folder) == self._version(copy)

    def digests(self, student: str) -> list[str]:
        """Of the current notebook, then of the earlier ones; [] without a submission."""
        if not self.has_submission(student):
            return []
        folders = [submission_folder(self.course, self.lab, student), *self._past(student)]
        return [self._version(folder).digest for folder in folders]

    def earlier(self, student: str) -> list[str]:
        """The names of the folders with earlier submissions: their times, the oldest first."""
        return sorted(path.name for path in self._past(student))

    def has_lab(self, student: str) -> bool:
        """Whether there is a notebook of the lab: other files are kept in the same place."""
        cells = cells_of_lab(self.course, self.lab)
        path, _ = find_notebook(submission_folder(self.course, self.lab, student), self.lab, cells)
        if path is None or cells is None:
            return False
        try:
            notebook, _ = read_notebook(read_content(path), cells)
        except Unreadable:
            return False
        return bool(lab_of(notebook.cells, path.name, {self.lab: cells}, self.lab))

    def has_submission(self, student: str) -> bool:
        return submission_folder(self.course, self.lab, student).exists()

    def _history(self, student: str) -> Path:
        return grading_folder(self.course) / EARLIER / student / self.lab

    def _past(self, student: str) -> list[Path]:
        """Without folders that an interrupted run left: their names begin with a dot."""
        return [path for path in self._history(student).glob("[!.]*") if path.is_dir()]

    def _new_folder(self, student: str, time: datetime) -> Path:
        name = f"{time:%Y-%m-%d_%H-%M-%S}"
        number, folder = 1, self._history(student) / name
        while folder.exists():
            number += 1
            folder = folder.with_name(f"{name}_{number}")
        return folder

    def _write(self, folder: Path, version: Version, content: bytes) -> None:
        """Writes a folder that is complete as soon as it has its name."""
        partial = folder.with_name(f".{folder.name.lstrip('.')}.{os.getpid()}")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)  # left by an interrupted run
        partial.mkdir(parents=True)
        notebook = partial / f"{self.lab}.ipynb"
        notebook.write_bytes(content)
        os.utime(notebook, (version.time.timestamp(),) * 2)
        if version.is_submission_time:
            (partial / TIMESTAMP).write_text(f"{version.time:%Y-%m-%d %H:%M:%S} UTC\n")
        partial.rename(folder)

    def _version(self, folder: Path) -> Version:
        path, _ = find_notebook(folder, self.lab, cells_of_lab(self.course, self.lab))
        try:
            content = read_content(path) if path else b""
        except Unreadable:
            content = b""
        time = datetime.fromtimestamp(int((path or folder).lstat().st_mtime), UTC)
        try:
            written = submission_time(folder)
        except BadTimestamp:
            written = None
        if written is None:
            return Version(digest(content), time)
        return Version(digest(content), written.replace(tzinfo=UTC, microsecond=0), True)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
