"""Records what a rank changes in a folder, in order: a save can be looked at moment by moment.

Recorded: files opened for writing by Python, each write that reaches the operating system,
``fsync`` of a file or folder, ``mkdir``, ``rename`` and ``replace``, ``remove`` and ``rmdir``.
Not recorded: files that C++ code opens by name (``torch.save(state, path)``: pass it an open file
instead), ``shutil.rmtree``, files opened to be changed in place, and in functions from a notebook's
cells IPython's ``open``, which travels to the ranks with them: there, use ``path.open``.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, NamedTuple
from unittest import mock

OPERATIONS = {  # function of os -> op of a DiskChange
    **{name: name for name in ("rename", "mkdir", "remove", "rmdir")},
    **{"replace": "rename", "unlink": "remove"},
}


class DiskChange(NamedTuple):
    """One change, at the time when it was done (time.monotonic(), which all ranks share).

    op: "create" (or truncate), "write", "fsync", "mkdir", "rename", "remove" or "rmdir".
    path, to: relative to the folder; ``to`` is the new name of a rename.
    data: the bytes of a write.
    """

    at_s: float
    op: str
    path: str
    to: str = ""
    data: bytes = b""


@contextlib.contextmanager
def disk_changes(folder: str | os.PathLike[str]) -> Iterator[list[DiskChange]]:
    """``with disk_changes(folder) as changes:`` the list grows with each change of this process."""
    root = os.path.realpath(folder)
    changes: list[DiskChange] = []

    def note(op: str, path: Any, to: Any = None, data: bytes = b"") -> None:
        within = _within(root, path)
        to_within = "" if to is None else _within(root, to)
        if within is not None and to_within is not None:
            changes.append(DiskChange(time.monotonic(), op, within, to_within, data))

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if set(mode) & set("wx") and isinstance(file, str | os.PathLike) and _within(root, file):
            return _open_recorded(file, mode, note, *args, **kwargs)
        return original_open(file, mode, *args, **kwargs)

    def fsync(descriptor: Any) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        original_fsync(number)
        with contextlib.suppress(OSError):  # systems without /proc
            note("fsync", os.readlink(f"/proc/self/fd/{number}"))

    original_open, original_fsync = builtins.open, os.fsync
    with contextlib.ExitStack() as patches:
        replaced: dict[tuple[Any, str], Any] = {
            (builtins, "open"): opened,
            (io, "open"): opened,  # pathlib's
            (os, "fsync"): fsync,
        }
        for name, op in OPERATIONS.items():
            replaced[os, name] = _noted(getattr(os, name), op, note)
        for (module, name), function in replaced.items():
            patches.enter_context(mock.patch.object(module, name, function))
        yield changes


def _noted(original: Callable[..., Any], op: str, note: Callable[..., None]) -> Callable[..., Any]:
    def call(path: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(path, *args, **kwargs)
        note(op, path, args[0] if op == "rename" else None)
        return result

    return call


def _open_recorded(
    file: Any, mode: str, note: Callable[..., None], buffering: int = -1, *args: Any, **kwargs: Any
) -> Any:
    raw = _RecordedFile(file, mode.replace("b", "").replace("t", ""))
    raw.note = note
    note("create", file)
    if buffering == 0:
        return raw
    buffered = io.BufferedWriter(raw)
    return buffered if "b" in mode else io.TextIOWrapper(buffered, *args, **kwargs)


class _RecordedFile(io.FileIO):
    """Below Python's buffer: its writes are those that the operating system gets."""

    note: Callable[..., None]

    def write(self, data: Any) -> int:
        written = super().write(data)
        self.note("write", self.name, data=bytes(memoryview(data).cast("B")[:written]))
        return written


def _within(root: str, path: Any) -> str | None:
    """The path relative to ``root``, "." for itself; None if it is elsewhere."""
    if not isinstance(path, str | os.PathLike):
        return None
    relative = os.path.relpath(os.path.realpath(os.fspath(path)), root)
    return None if relative.startswith("..") else relative


def snapshot(folder: Path) -> dict[str, bytes]:
    """{path relative to the folder: its content} of every file in it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@dataclass
class DiskFile:
    """data: what any process reads. synced: how many bytes of it are on the disk itself."""

    data: bytes
    synced: int


class Disk:
    """A folder's files and folders in memory, to which recorded changes are applied.

    before: what was in it, see `snapshot`; all of that counts as synced.
    """

    def __init__(self, before: Mapping[str, bytes]) -> None:
        self.files = {path: DiskFile(data, len(data)) for path, data in before.items()}
        self.folders = {str(PurePath(path).parent) for path in before} - {"."}

    def apply(self, change: DiskChange) -> None:
        path = change.path
        if change.op == "create":
            self.files[path] = DiskFile(b"", 0)
        elif change.op == "write":
            self.files[path].data += change.data
        elif change.op == "fsync" and path in self.files:
            self.files[path].synced = len(self.files[path].data)
        elif change.op == "mkdir":
            self.folders.add(path)
        elif change.op == "rename":
            self.files = {_moved(each, change): file for each, file in self.files.items()}
            self.folders = {_moved(each, change) for each in self.folders}
        elif change.op == "remove":
            del self.files[path]
        elif change.op == "rmdir":
            self.folders.discard(path)

    def write_to(self, folder: Path, *, only_synced: bool = False) -> None:
        """Makes the same files and folders in an empty folder.

        ``only_synced``: as a power failure may leave them: bytes that no fsync followed are lost.
        (It may also undo renames and lose names. They stay here, which is worse: a name without
        its bytes looks like a checkpoint.)
        """
        for each in sorted(self.folders):
            (folder / each).mkdir(parents=True, exist_ok=True)
        for path, file in self.files.items():
            (folder / path).write_bytes(file.data[: file.synced] if only_synced else file.data)


def _moved(path: str, change: DiskChange) -> str:
    if path == change.path or path.startswith(f"{change.path}/"):
        return change.to + path.removeprefix(change.path)
    return path
