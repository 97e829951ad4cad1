"""Folders that only this rank and its child processes can write: in a sandbox, not elsewhere."""

from __future__ import annotations

import os
import shutil

PATHS: tuple[str, ...] = ()  # set by sandbox.container


def content() -> set[str]:
    return {os.path.join(folder, name) for folder in PATHS for name in os.listdir(folder)}


def remove_all_but(kept: set[str]) -> None:
    for path in content() - kept:
        shutil.rmtree(path, ignore_errors=True)
        if os.path.lexists(path) and not os.path.isdir(path):
            os.unlink(path)
