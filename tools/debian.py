"""Install Debian packages that the tests need, quietly; works only as root with apt."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

INSTALL_TIMEOUT_S = 900


def can_install() -> bool:
    return bool(shutil.which("apt-get")) and hasattr(os, "geteuid") and os.geteuid() == 0


def install(what: str, *packages: str) -> bool:
    """Install ``packages``; returns whether that succeeded. ``what``: for the message on stderr."""
    if not can_install():
        return False
    return run_installer(what, "apt-get", "update") and run_installer(
        what, "apt-get", "install", "--yes", "--no-install-recommends", *packages
    )


def run_installer(what: str, *command: str) -> bool:
    """Run an installer with a time limit; shows its last lines only if it fails."""
    print(f"installing {what}: {' '.join(command)}", file=sys.stderr, flush=True)
    try:
        done = subprocess.run(
            command,
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"  {error}", file=sys.stderr)
        return False
    if done.returncode:
        print("".join(f"  {line}\n" for line in done.stdout.splitlines()[-4:]), file=sys.stderr)
    return done.returncode == 0
