"""The records of a lab's submissions, a file each: whole or absent, whatever ends the grader."""

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
    """Records cannot be kept: what is wrong, and what to do."""


class Journal:
    """``grading/records/LAB/STUDENT.json``; those that wait for approval are in ``waiting``."""

    def __init__(self, records: Path, lab: str, waiting: bool = False) -> None:
        self.lab = lab
        self.folder = records / lab / ".regraded" if waiting else records / lab

    def path(self, student: str) -> Path:
        return self.folder / f"{student}.json"

    def read(self, student: str) -> Record | None:
        """None where there is none; raises BrokenRecord where it cannot be used."""
        try:
            with self.path(student).open("rb") as file:
                record = Record.from_json(file.read(MAX_BYTES))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BrokenRecord(f"it cannot be read ({error.strerror})") from error
        if (record.lab, record.student) != (self.lab, student):
            raise BrokenRecord(f"it is that of {record.student} for {record.lab}")
        return record

    def write(self, record: Record) -> None:
        """Raises JournalError; what was there before is then still there."""
        path = self.path(record.student)
        beside = self.folder / f".{os.getpid()}.part"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with beside.open("w", encoding="utf-8", errors="surrogatepass") as file:
                file.write(record.to_json())
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, path)
            _sync_folder(self.folder)
        except OSError as error:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            raise JournalError(
                f"{path} cannot be written ({error.strerror}): make room, or make the folder "
                "writable, and start again. What was graded until now is kept."
            ) from error

    def students(self) -> list[str]:
        return sorted(path.stem for path in self.folder.glob("*.json"))

    def move_to(self, other: Journal, student: str) -> None:
        """The record is here or there, never in neither."""
        other.folder.mkdir(parents=True, exist_ok=True)
        os.replace(self.path(student), other.path(student))
        _sync_folder(other.folder)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process grades a lab. The lock is the kernel's: it ends with its process."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                file.seek(0)
                raise JournalError(
                    f"{self.lab} is being graded already, by process {file.read().strip()}: wait "
                    "for it, or end it. Nothing was graded or changed."
                ) from error
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            yield


def _sync_folder(folder: Path) -> None:
    """A rename outlives a power cut only once its folder is on the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
