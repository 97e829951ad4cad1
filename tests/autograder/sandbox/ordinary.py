"""A command run by an ordinary user, in tests that root starts."""

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
    """``home`` is given to that user, with all that lies in it. As an ordinary user: just run.

    Where this Python lies in a folder that only root may enter (/root/.pyenv), the command sees
    that folder opened, in a mount namespace of its own: the machine stays as it is.
    """
    environment = {**os.environ, "HOME": str(home), **kw.pop("env", {})}
    environment.pop("XDG_CACHE_HOME", None)
    if os.geteuid() == 0:
        for path in [home, *home.rglob("*")]:
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        script = [*_open_the_way_to(Path(sys.base_prefix)), *_open_the_way_to(home)]
        user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        script.append(f"exec {shlex.join([*user, *command])}")
        command = ["unshare", "--mount", "sh", "-ec", "\n".join(script)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, **kw)


def is_possible() -> bool:
    return os.geteuid() != 0 or bool(shutil.which("setpriv") and shutil.which("unshare"))


def _open_the_way_to(target: Path) -> list[str]:
    """Shell lines that show ``target`` below an open copy of the first closed folder above it."""
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
