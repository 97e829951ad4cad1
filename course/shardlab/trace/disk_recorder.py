"""Records what a rank changes in a folder, in order, so that a save can be looked at moment by moment.

Held: files opened for writing by Python, each write that reaches the operating system, ``fsync``
of a file or folder, ``mkdir``, ``rename`` and ``replace``, ``remove`` and ``rmdir``.  Not held:
files that C++ code opens by name (``torch.save(state, path)``: pass it an open file instead), and
writes past the end of a hole.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock


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
    root = os.path.abspath(folder)
    changes: list[DiskChange] = []

    def note(op: str, path: Any, to: Any = None, data: bytes = b"") -> None:
        named = [_within(root, each) for each in (path, to) if each is not None]
        if None not in named:
            changes.append(DiskChange(time.monotonic(), op, *map(str, named), data=data))

    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if set(mode) & set("wx") and isinstance(file, str | os.PathLike) and _within(root, file):
            return _open_recorded(file, mode, note, *args, **kwargs)
        return original_open(file, mode, *args, **kwargs)

    def fsync(descriptor: Any) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        original_fsync(number)
        note("fsync", os.readlink(f"/proc/self/fd/{number}"))

    original_open, original_fsync = builtins.open, os.fsync
    with contextlib.ExitStack() as patches:
        replaced: dict[tuple[Any, str], Any] = {
            (builtins, "open"): opened,
            (io, "open"): opened,  # pathlib's
            (os, "fsync"): fsync,
        }
        for name, op in (("rename", "rename"), ("replace", "rename"), ("mkdir", "mkdir"),
                         ("remove", "remove"), ("unlink", "remove"), ("rmdir", "rmdir")):  # fmt: skip
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
    relative = os.path.relpath(os.path.abspath(os.fspath(path)), root)
    return None if relative.startswith("..") else relative


def replay(
    changes: list[DiskChange], folder: Path, *, only_synced: bool = False
) -> None:
    """Makes the same changes in another folder, one after the other.

    ``only_synced``: without what a power failure may take: bytes that no fsync of their file
    followed. (It may also take the names of new files. Here they stay, the worse case, since a
    name without its bytes looks like a checkpoint.)
    """
    last_sync = _last_syncs(changes) if only_synced else {}
    for index, change in enumerate(changes):
        path = folder / change.path
        if change.op == "create":
            path.write_bytes(b"")
        elif change.op == "write":
            if not only_synced or index < last_sync.get(_file_at(changes, index), -1):
                with path.open("ab") as file:
                    file.write(change.data)
        elif change.op == "mkdir":
            path.mkdir()
        elif change.op == "rename":
            path.replace(folder / change.to)
        elif change.op == "remove":
            path.unlink()
        elif change.op == "rmdir":
            path.rmdir()
