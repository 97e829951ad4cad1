"""Runs a command without root, in tests that root starts."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

REPO = Path(__file__).parents[3]
NOBODY = 65534


def run_without_root(command: list[str], home: Path, **kw: Any) -> subprocess.CompletedProcess[str]:
    """As root, runs it as user nobody, who becomes the owner of ``home``; else simply runs it.

    If this Python is in a folder that only root may enter (/root/.pyenv), a separate mount
    namespace makes it accessible to the command: the machine itself is not changed.
    """
    environment = {**os.environ, "HOME": str(home), **kw.pop("env", {})}
    environment.pop("XDG_CACHE_HOME", None)
    if os.geteuid() == 0:
        for path in [home, *home.rglob("*")]:
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        script = make_reachable(Path(sys.base_prefix), home)
        user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        script.append(f"exec {shlex.join([*user, *command])}")
        command = ["unshare", "--mount", "sh", "-ec", "\n".join(script)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, **kw)


def run_again_without_root(file: str) -> None:
    """Runs a file of tests again, without root, and asserts that none fails."""
    if os.geteuid() != 0:
        pytest.skip("already without root")
    with tempfile.TemporaryDirectory(dir="/tmp") as home:  # pytest's belong to root
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n0", file]
        done = run_without_root([*command, f"--basetemp={home}/t"], Path(home), cwd=REPO)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "failed" not in done.stdout


def is_possible() -> bool:
    return os.geteuid() != 0 or bool(shutil.which("setpriv") and shutil.which("unshare"))


def make_reachable(*targets: Path) -> list[str]:
    """Shell lines for a mount namespace in which each folder that only root may enter contains only
    the path to ``targets``."""
    needed: dict[Path, set[str]] = {}
    for target in targets:
        for folder in reversed(target.parents):
            if not folder.stat().st_mode & 0o001:
                needed.setdefault(folder, set()).add(target.relative_to(folder).parts[0])
                break
    lines = []
    for folder, names in needed.items():
        hidden, kept = shlex.quote(str(folder)), "/mnt"
        lines += [f"mount --bind {hidden} {kept}", f"mount -t tmpfs -o mode=0755 none {hidden}"]
        for name in map(shlex.quote, sorted(names)):
            lines += [f"mkdir {hidden}/{name}", f"mount --bind {kept}/{name} {hidden}/{name}"]
        lines.append(f"umount {kept}")
    return lines
