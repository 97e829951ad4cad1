"""A PostgreSQL server for one module of tests: a folder in /tmp, a Unix socket, no port."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tools import postgres

START_LIMIT_S = 60
STOP_LIMIT_S = 20
OWNER = "shardlab"


@contextmanager
def postgres_or_skip() -> Iterator[str]:
    """As `running_postgres`; skips the test where PostgreSQL is not installed, except in CI."""
    ci = bool(os.environ.get("SHARDLAB_NEEDS_BROWSER"))  # set where nothing may be skipped
    programs = postgres.get() if ci else postgres.find()
    if programs is None:
        (pytest.fail if ci else pytest.skip)(postgres.NONE)
    with running_postgres(programs) as db_url:
        yield db_url


@contextmanager
def running_postgres(programs: Path) -> Iterator[str]:
    """The ``db_url`` of an empty gradebook on a server that ends with this block."""
    # Not pytest's tmp_path: if we are root, the server runs as another user, who cannot read it. A
    # socket's path is also limited to about 100 characters.
    folder = Path(tempfile.mkdtemp(prefix="shardlab-pg-", dir="/tmp"))
    run_as = unprivileged_user()
    try:
        if run_as:
            shutil.chown(folder, run_as["user"], run_as["group"])
        init_database(programs, folder, run_as)
        with (folder / "log").open("w") as log:
            server = subprocess.Popen(
                [
                    programs / "postgres",
                    *("-D", folder / "data", "-k", folder),
                    *("-c", "listen_addresses=", "-c", "fsync=off"),
                ],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **run_as,
            )
            try:
                wait_until_it_answers(server, programs, folder)
                yield f"postgresql+psycopg://{OWNER}@/postgres?host={folder}&connect_timeout=10"
            finally:
                stop(server)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def init_database(programs: Path, folder: Path, run_as: dict[str, Any]) -> None:
    done = subprocess.run(
        [
            programs / "initdb",
            *("-D", folder / "data", "-U", OWNER, "--auth=trust"),
            *("--encoding=UTF8", "--no-locale", "--no-sync"),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        **run_as,
    )
    assert done.returncode == 0, done.stderr


def unprivileged_user() -> dict[str, Any]:
    """Arguments for subprocess that change the user if this one is root, as PostgreSQL requires."""
    if os.geteuid() != 0:
        return {}
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = names.get("postgres") or names["nobody"]
    return {"user": entry.pw_name, "group": entry.pw_gid, "extra_groups": []}


def wait_until_it_answers(server: subprocess.Popen[bytes], programs: Path, folder: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline and server.poll() is None:
        # The last line is "ready" once the server accepts connections.
        record = folder / "data/postmaster.pid"
        if record.exists() and record.read_text().rstrip().endswith("ready"):
            return
        time.sleep(0.05)
    raise RuntimeError(f"PostgreSQL did not start:\n{(folder / 'log').read_text()}")


def stop(server: subprocess.Popen[bytes]) -> None:
    server.send_signal(signal.SIGINT)  # PostgreSQL's "fast shutdown": closes open connections
    try:
        server.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
