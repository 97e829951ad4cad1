"""Records a rank's changes to a folder, in order, so that a save can be examined step by step.

Recorded: files opened for writing by Python, each write that reaches the operating system,
``fsync`` of a file or folder, ``mkdir``, ``rename`` and ``replace``, ``remove`` and ``rmdir``.
Not recorded: files that C++ code opens by name (``torch.save(state, path)``: pass it an open file
instead), ``shutil.rmtree``, files opened for updating in place, and ``open`` in functions defined
in a notebook, which is IPython's and is pickled with them: use ``path.open`` there.
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
    """One change and when it was made (time.monotonic(), which all ranks share).

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
    """``with disk_changes(folder) as changes:`` collects this process's changes in a list."""
    root = os.path.realpath(folder)
    changes: list[DiskChange] = []

    def record(op: str, path: Any, to: Any = None, data: bytes = b"") -> None:
        within = _within(root, path)
        to_within = "" if to is None else _within(root, to)
        if within is not None and to_within is not None:
            changes.append(DiskChange(time.monotonic(), op, within, to_within, data))

    def recording_open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if set(mode) & set("wx") and isinstance(file, str | os.PathLike) and _within(root, file):
            return _open_recorded(file, mode, record, *args, **kwargs)
        return original_open(file, mode, *args, **kwargs)

    def fsync(descriptor: Any) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        original_fsync(number)
        with contextlib.suppress(OSError):  # systems without /proc
            record("fsync", os.readlink(f"/proc/self/fd/{number}"))

    original_open, original_fsync = builtins.open, os.fsync
    with contextlib.ExitStack() as patches:
        replaced: dict[tuple[Any, str], Any] = {
            (builtins, "open"): recording_open,
            (io, "open"): recording_open,  # pathlib's
            (os, "fsync"): fsync,
        }
        for name, op in OPERATIONS.items():
            replaced[os, name] = _recording(getattr(os, name), op, record)
        for (module, name), function in replaced.items():
            patches.enter_context(mock.patch.object(module, name, function))
        yield changes


def _recording(
    original: Callable[..., Any], op: str, record: Callable[..., None]
) -> Callable[..., Any]:
    def call(path: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(path, *args, **kwargs)
        record(op, path, args[0] if op == "rename" else None)
        return result

    return call


def _open_recorded(
    file: Any,
    mode: str,
    record: Callable[..., None],
    buffering: int = -1,
    *args: Any,
    **kwargs: Any,
) -> Any:
    raw = _RecordedFile(file, mode.replace("b", "").replace("t", ""))
    raw.record = record
    record("create", file)
    if buffering == 0:
        return raw
    buffered = io.BufferedWriter(raw)
    return buffered if "b" in mode else io.TextIOWrapper(buffered, *args, **kwargs)


class _RecordedFile(io.FileIO):
    """Below Python's buffer: each of its writes reaches the operating system."""

    record: Callable[..., None]

    def write(self, data: Any) -> int:
        written = super().write(data)
        self.record("write", self.name, data=bytes(memoryview(data).cast("B")[:written]))
        return written


def _within(root: str, path: Any) -> str | None:
    """The path relative to ``root``, "." for itself; None if it is elsewhere."""
    if not isinstance(path, str | os.PathLike):
        return None
    relative = os.path.relpath(os.path.realpath(os.fspath(path)), root)
    return None if relative.startswith("..") else relative


def snapshot(folder: Path) -> dict[str, bytes]:
    """{path relative to the folder: content} for every file in it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@dataclass
class DiskFile:
    """data: what any process reads. synced: how many of its bytes are on the disk itself."""

    data: bytes
    synced: int


class Disk:
    """A folder's files and folders in memory, to which recorded changes are applied.

    before: its initial files, see `snapshot`; all of them count as synced.
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
            self.files = {_renamed(old, change): file for old, file in self.files.items()}
            self.folders = {_renamed(old, change) for old in self.folders}
        elif change.op == "remove":
            del self.files[path]
        elif change.op == "rmdir":
            self.folders.discard(path)

    def write_to(self, folder: Path, *, only_synced: bool = False) -> None:
        """Create the same files and folders in an empty folder.

        ``only_synced``: as a power failure may leave them, without the bytes that no fsync
        followed. (It may also undo renames and lose names. Here they stay, the worse case: a name
        without its bytes looks like a checkpoint.)
        """
        for path in sorted(self.folders):
            (folder / path).mkdir(parents=True, exist_ok=True)
        for path, file in self.files.items():
            (folder / path).write_bytes(file.data[: file.synced] if only_synced else file.data)


def _renamed(path: str, change: DiskChange) -> str:
    if path == change.path or path.startswith(f"{change.path}/"):
        return change.to + path.removeprefix(change.path)
    return path
