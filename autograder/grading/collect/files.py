"""The files of a download, which is a folder or a zip. Nothing is unpacked to disk."""

from __future__ import annotations

import os
import re
import stat
import unicodedata
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from autograder.grading.course_time import course_zone
from autograder.grading.submission.files import Unreadable, read_regular_file
from autograder.grading.submission.kinds import is_noise, kind_of
from autograder.grading.submission.reader import MAX_BYTES

MAX_FILES = 100_000
UTF8_FLAG = 0x800
LINK = "it is a link"
OUTSIDE = "its path leads out of the download"
DRIVE = re.compile(r"^[A-Za-z]:")


class CollectError(Exception):
    """Nothing can be collected: why, and what to do. Nothing was changed."""


@dataclass(frozen=True)
class File:
    path: PurePosixPath  # inside the download, composed (NFC), whatever wrote it
    time: datetime  # UTC, in whole seconds; in a zip, which has no zones: in the course's
    why_not: str  # why it must not be read, or ""
    _read: Callable[[int], bytes]

    def read(self, max_bytes: int = MAX_BYTES) -> bytes:
        """Raises Unreadable."""
        if self.why_not:
            raise Unreadable(self.why_not)
        return self._read(max_bytes)

    @property
    def may_be_notebook(self) -> bool:
        return bool(kind_of(self.path.name))

    @property
    def shown(self) -> str:
        """For a terminal: a name is student input, too."""
        text = str(self.path)
        return text if text.isprintable() else repr(text)


@contextmanager
def opened(download: Path) -> Iterator[list[File]]:
    """All files, sorted by path, without what operating systems add. Raises CollectError."""
    if download.is_dir():
        yield sorted(_in_folder(download), key=lambda file: file.path)
        return
    try:
        archive = zipfile.ZipFile(download)
    except FileNotFoundError as error:
        raise CollectError(f"there is no {download}") from error
    except (OSError, zipfile.BadZipFile) as error:
        raise CollectError(
            f"{download} is neither a folder nor a zip that can be opened ({error}): download it "
            "again, or unpack it and name the folder"
        ) from error
    with archive:
        if len(archive.infolist()) > MAX_FILES:
            raise CollectError(f"{download} contains more than {MAX_FILES:,} files")
        yield sorted(_in_zip(archive), key=lambda file: file.path)


def _in_folder(folder: Path) -> Iterator[File]:
    count = 0
    for where, folders, names in os.walk(folder):
        links = [name for name in folders if Path(where, name).is_symlink()]
        for name in names + links:
            path = Path(where, name)
            relative = _composed(path.relative_to(folder).as_posix())
            if is_noise(relative):
                continue
            count += 1
            if count > MAX_FILES:
                raise CollectError(f"{folder} contains more than {MAX_FILES:,} files")
            state = path.lstat()
            why_not = LINK if stat.S_ISLNK(state.st_mode) else ""

            def read(max_bytes: int, path: Path = path) -> bytes:
                return read_regular_file(path, max_bytes)

            yield File(PurePosixPath(relative), _utc(state.st_mtime), why_not, read)


def _in_zip(archive: zipfile.ZipFile) -> Iterator[File]:
    for entry in archive.infolist():
        name = _composed(_decoded(entry).replace("\\", "/"))
        if entry.is_dir() or is_noise(name):
            continue
        try:
            time = _utc(datetime(*entry.date_time, tzinfo=course_zone()).timestamp())
        except (ValueError, OverflowError):  # a month 0, as some programs write
            time = _utc(0)

        def read(max_bytes: int, entry: zipfile.ZipInfo = entry) -> bytes:
            try:
                with archive.open(entry) as stream:
                    content = stream.read(max_bytes + 1)  # whatever size its header declares
            except Exception as error:  # encrypted, damaged
                raise Unreadable(f"it cannot be unpacked ({type(error).__name__})") from error
            if len(content) > max_bytes:
                raise Unreadable(f"it is larger than {max_bytes // 1_000_000} MB")
            return content

        yield File(PurePosixPath(name), time, _why_not(entry, name), read)


def _decoded(entry: zipfile.ZipInfo) -> str:
    """Canvas and macOS write UTF-8 without the flag that says so: Python then reads code page 437.

    Another code page is hardly ever valid UTF-8.
    """
    if entry.flag_bits & UTF8_FLAG:
        return entry.filename
    try:
        return entry.filename.encode("cp437").decode()
    except UnicodeError:
        return entry.filename


def _why_not(entry: zipfile.ZipInfo, name: str) -> str:
    if name.startswith("/") or DRIVE.match(name) or ".." in name.split("/"):
        return OUTSIDE
    if stat.S_ISLNK(entry.external_attr >> 16):
        return LINK
    if entry.file_size > MAX_BYTES and not name.endswith(".yml"):
        return f"it is larger than {MAX_BYTES // 1_000_000} MB"
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "it uses an unusual compression method"  # may need any amount of memory
    return ""


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(int(seconds), UTC)
