"""Start the JupyterLab of `make lab` on a copy of the repository, and stop it afterwards."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autograder import exercises

ROOT = Path(__file__).resolve().parent.parent
START_LIMIT_S = 180  # a busy machine is not an error
STOP_LIMIT_S = 15


@dataclass(frozen=True)
class LabServer:
    """A running JupyterLab. `root` is the folder it serves, `home` is its HOME."""

    url: str
    token: str
    root: Path
    home: Path

    def url_of(self, path: str = "") -> str:
        """The page for a file or for JupyterLab; absolute paths such as `/formgrader` unchanged."""
        page = path.lstrip("/") if path.startswith("/") else f"lab/tree/{path}"
        return f"{self.url}{page}?token={self.token}"


def copy_repository(target: Path, *, only_lab: str = "") -> Path:
    """Copy all files that git tracks or would track to `target`, so uncommitted work is tested.

    ``only_lab``: without the other labs and their chapters, which take long to build and release.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():  # git still lists a file that was just deleted
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    for lab in set(exercises.labs()) - {only_lab} if only_lab else ():
        for folder in ("labs/", "solutions/", "tests/submissions/", "autograder/exercises/lab"):
            shutil.rmtree(target / f"{folder}{lab}")
        for chapter in (target / "course/chapters").glob(f"{lab}.*"):
            chapter.unlink()
    return target


@contextmanager
def running_lab(root: Path, home: Path, *args: str) -> Iterator[LabServer]:
    """Start tools/lab.py of `root`, wait until the server answers, and stop it afterwards."""
    log = (home / "lab.log").open("w")
    process = subprocess.Popen(
        [
            sys.executable,
            "tools/lab.py",
            "--no-browser",
            "--LabApp.expose_app_in_browser=True",
            *args,
        ],
        cwd=root,
        env={
            **{name: value for name, value in os.environ.items() if "JUPYTER" not in name},
            "HOME": str(home),
            "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        },
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        yield wait_until_it_answers(process, root, home)
    finally:
        process.terminate()
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        log.close()


def wait_until_it_answers(process: subprocess.Popen[bytes], root: Path, home: Path) -> LabServer:
    # tools/lab.py becomes the server, so the server's record is named after this process's id.
    record = home / "runtime" / f"jpserver-{process.pid}.json"
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and process.poll() is None:
        if server := _answering(record):
            return LabServer(server["url"], server["token"], root, home)
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab did not start:\n{(home / 'lab.log').read_text()}")


def _answering(record: Path) -> dict[str, Any] | None:
    """The server's record (url, token, ...) once it is written and the server answers."""
    try:
        server = json.loads(record.read_text())
        urllib.request.urlopen(f"{server['url']}api/status?token={server['token']}", timeout=10)
    except (OSError, ValueError):
        return None
    return server
