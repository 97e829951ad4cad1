"""Removing the control groups of killed graders."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from autograder.sandbox.cgroup import clear


def test_only_groups_of_dead_graders_are_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    unrelated = tmp_path / "unrelated"
    unrelated.mkdir()
    living = tmp_path / f"shardlab-{os.getpid()}-0"
    left, busy = (tmp_path / f"shardlab-{dead.pid}-{count}" for count in range(2))
    for folder in (living, left, busy):
        folder.mkdir()
    (busy / "a process").touch()  # rmdir fails, as for a group with a process
    clear(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([living, busy, unrelated])
