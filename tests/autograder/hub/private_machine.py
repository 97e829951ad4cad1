"""A machine with its own users: its /etc, /home and /srv are private folders of a test.

Its processes are in separate Linux namespaces (mounts and process ids), which root can create;
the network is this machine's. When the test ends, even by a kill, all its processes end.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.autograder.sandbox.without_root import make_reachable
from tests.running_lab import ROOT

COMMANDS = ("unshare", "nsenter", "setpriv", "useradd", "chpasswd")
PRIVATE = ("etc", "home", "srv")


def why_impossible() -> str | None:
    if os.geteuid() != 0:
        return "only root can create users"
    if missing := [command for command in COMMANDS if not shutil.which(command)]:
        return f"not installed: {', '.join(missing)}"
    namespaces = subprocess.run(["unshare", "--mount", "--pid", "--fork", "--mount-proc", "true"])
    return "root may not create namespaces here" if namespaces.returncode else None


@dataclass(frozen=True)
class PrivateMachine:
    folder: Path
    first_process: int

    def path(self, absolute: str) -> Path:
        """Where the machine's /etc/..., /home/... or /srv/... is for the test."""
        return self.folder / absolute.lstrip("/")

    def write(self, absolute: str, text: str) -> None:
        self.path(absolute).parent.mkdir(parents=True, exist_ok=True)
        self.path(absolute).write_text(text)

    def add_user(self, name: str, password: str) -> None:
        """Adds a user with this system's defaults, and a folder in /home."""
        self.run(f"useradd --create-home --shell /bin/bash {name}")
        self.run(f"echo {name}:{password} | chpasswd")

    def command(self, script: str, user: str = "root", **variables: str) -> list[str]:
        """The command that runs a shell script as ``user``, in their home."""
        return [
            *("nsenter", f"--target={self.first_process}", "--mount", "--pid", "setpriv"),
            *(f"--reuid={user}", f"--regid={user}", "--init-groups", "--reset-env"),
            *("env", *(f"{name}={value}" for name, value in variables.items())),
            *("bash", "-euc", f"cd ~{user}\n{script}"),
        ]

    def run(self, script: str, user: str = "root", **variables: str) -> str:
        """Runs the script, which must succeed, and returns what it prints."""
        command = self.command(script, user, **variables)
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr


@contextmanager
def private_machine(folder: Path) -> Iterator[PrivateMachine]:
    shutil.copytree("/etc", folder / "etc", symlinks=True)
    for name in PRIVATE[1:]:
        (folder / name).mkdir()
    script = [
        *make_reachable(Path(sys.base_prefix), Path(sys.prefix), ROOT),
        *(f"mount --bind {folder / name} /{name}" for name in PRIVATE),
        "echo ready",
        "exec cat",  # until the test closes its input or exits
    ]
    with subprocess.Popen(
        ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-ec", "\n".join(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as unshare:
        assert unshare.stdout is not None
        assert unshare.stdout.readline() == "ready\n"
        (first,) = psutil.Process(unshare.pid).children()
        yield PrivateMachine(folder, first.pid)
