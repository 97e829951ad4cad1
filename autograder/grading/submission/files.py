"""Reads a file from a folder where a student may have put anything."""

from __future__ import annotations

import os
import stat


class Unreadable(Exception):
    """Why nothing was read, as the end of a sentence for the student: "it is empty"."""


def read_regular_file(
    path: str | os.PathLike[str], max_bytes: int, folder: int | None = None
) -> bytes:
    """The content of the file ``path`` itself: follows no symbolic link, does not wait for a pipe,
    and refuses a hard link, whose other name may be anywhere. Raises Unreadable.

    ``folder``: the descriptor of an open folder that ``path`` is relative to.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError as error:
        raise Unreadable(f"it cannot be opened ({error.strerror})") from error
    try:
        state = os.fstat(file)
        if not stat.S_ISREG(state.st_mode):
            raise Unreadable("it is not a regular file")
        if state.st_nlink > 1:
            raise Unreadable("it is a hard link to another file: submit a copy")
        with os.fdopen(file, "rb", closefd=False) as stream:
            content = stream.read(max_bytes + 1)
    finally:
        os.close(file)
    if len(content) > max_bytes:
        raise Unreadable(f"it is larger than {max_bytes // 1_000_000} MB")
    return content
