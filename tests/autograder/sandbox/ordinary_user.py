"""Runs a command as an ordinary user, in tests that root starts."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

NOBODY = 65534


def run_as_ordinary_user(
    command: list[str], home: Path, **kw: Any
) -> subprocess.CompletedProcess[str]:
    """Makes that user the owner of ``home`` and its content. For an ordinary user: just runs it.

    If this Python is in a folder that only root may enter (/root/.pyenv), a separate mount
    namespace makes it accessible to the command: the machine itself is not changed.
    """
    environment = {**os.environ, "HOME": str(home), **kw.pop("env", {})}
    environment.pop("XDG_CACHE_HOME", None)
    if os.geteuid() == 0:
        for path in [home, *home.rglob("*")]:
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        script = [*_make_reachable(Path(sys.base_prefix)), *_make_reachable(home)]
        user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        script.append(f"exec {shlex.join([*user, *command])}")
        command = ["unshare", "--mount", "sh", "-ec", "\n".join(script)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, **kw)


def is_possible() -> bool:
    return os.geteuid() != 0 or bool(shutil.which("setpriv") and shutil.which("unshare"))


def _make_reachable(target: Path) -> list[str]:
    """Shell lines that mount the path to ``target`` over the first inaccessible folder above it."""
    for folder in [*reversed(target.parents)]:
        if not folder.stat().st_mode & 0o001:
            below = target.relative_to(folder).parts[0]
            shown, kept = folder / below, "/mnt"
            return [
                f"mount --bind {shlex.quote(str(shown))} {kept}",
                f"mount -t tmpfs -o mode=0755 none {shlex.quote(str(folder))}",
                f"mkdir {shlex.quote(str(shown))}",
                f"mount --bind {kept} {shlex.quote(str(shown))}",
                f"umount {kept}",
            ]
    return []
