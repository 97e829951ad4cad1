"""Names checkpoints, copies the files that a start of the job leaves, and counts bytes."""

from __future__ import annotations

import shutil
from pathlib import Path


def name_of(step: int) -> str:
    """As in the lab."""
    return f"step_{step:08}"


def copy_of_files(source: Path, target: Path) -> None:
    """Copy regular files only, without their times and attributes."""
    target.mkdir()
    for path in source.iterdir():
        if path.is_symlink():
            continue
        if path.is_dir():
            copy_of_files(path, target / path.name)
        elif path.is_file():
            shutil.copyfile(path, target / path.name)


def total_bytes(folder: Path) -> int:
    """Of all files, and of their names."""
    return sum(len(p.name) + p.lstat().st_size * p.is_file() for p in folder.rglob("*"))


def text(name: str) -> str:
    """A file name as valid UTF-8."""
    return name.encode(errors="replace").decode()
