"""The records of a lab's submissions, one file each: complete or absent, even after a crash."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autograder.grading.record.record import BrokenRecord, Record

MAX_BYTES = 200_000_000


class JournalError(Exception):
    """Records cannot be saved: what is wrong, and what to do."""


class Locked(JournalError):
    """Another process grades the lab: nothing was started."""


class Journal:
    """``grading/records/LAB/STUDENT.json``; regrades to confirm are in ``.regraded``."""

    def __init__(self, records: Path, lab: str, unconfirmed: bool = False) -> None:
        self.lab = lab
        self.folder = records / lab / ".regraded" if unconfirmed else records / lab

    def path(self, student: str) -> Path:
        return self.folder / f"{student}.json"

    def read(self, student: str) -> Record | None:
        """None if there is none; raises BrokenRecord if it cannot be used."""
        try:
            with self.path(student).open("rb") as file:
                record = Record.from_json(file.read(MAX_BYTES))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BrokenRecord(f"it cannot be read ({error.strerror})") from error
        if (record.lab, record.student) != (self.lab, student):
            raise BrokenRecord(f"it is the record of {record.student} for {record.lab}")
        return record

    def write(self, record: Record) -> None:
        """If it raises JournalError, the previous record is unchanged."""
        path = self.path(record.student)
        partial = self.folder / f".{os.getpid()}.part"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with partial.open("w", encoding="utf-8", errors="surrogatepass") as file:
                file.write(record.to_json())
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
            _sync_folder(self.folder)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise JournalError(
                f"{path} cannot be written ({error.strerror}): free disk space, or make the "
                "folder writable, and run the command again. All grades so far are saved."
            ) from error

    def students(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def move_to(self, other: Journal, student: str) -> None:
        """Atomic: the record is always in one of the two."""
        other.folder.mkdir(parents=True, exist_ok=True)
        os.replace(self.path(student), other.path(student))
        _sync_folder(other.folder)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process at a time grades a lab. The lock ends with its process."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                file.seek(0)
                raise Locked(
                    f"{self.lab} is already being graded by process {file.read().strip()}, which "
                    "may be `grade-on-submit`: wait for it, or stop it. Nothing was graded or "
                    "changed."
                ) from error
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            yield


def _sync_folder(folder: Path) -> None:
    """A rename survives a power failure only once its folder is synced."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
