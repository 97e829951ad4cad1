"""`make env`: its error messages, and that it does nothing when the environment is up to date."""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.running_lab import ROOT
from tools import environment

WAIT_LIMIT_S = 60


@pytest.fixture
def course(tmp_path: Path) -> Path:
    """A repository with only the set-up files, and a lock with a package that does not exist."""
    root = tmp_path / "course"
    (root / "tools").mkdir(parents=True)
    for name in ("environment.py", "git_filter.py"):
        shutil.copy(ROOT / "tools" / name, root / "tools")
    shutil.copy(ROOT / "Makefile", root)
    (root / "requirements.lock").write_text("nowhere-to-be-found==1.0\n")
    return root


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """This process's environment without pip's settings: each test sets the index it needs."""
    for name in [*os.environ]:
        if name.startswith("PIP_") or name in ("CXX", "PYTHON", "MAKEFLAGS", "MAKELEVEL"):
            monkeypatch.delenv(name)
    return os.environ | {"PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "1"}


def run(root: Path, environ: dict[str, str], before: str = "") -> subprocess.CompletedProcess[str]:
    """Run tools/environment.py after `before`, a line of Python that patches something."""
    script = (
        f"import runpy, sys; {before}\nrunpy.run_path('tools/environment.py', run_name='__main__')"
    )
    return subprocess.run(
        [sys.executable, "-c", script], cwd=root, env=environ, capture_output=True, text=True
    )


def executable(path: Path, script: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script)
    path.chmod(0o755)
    return path


# ---- each problem is explained in one sentence


def test_a_python_that_is_too_old(course: Path, tmp_path: Path, environ: dict[str, str]) -> None:
    old = "sys.version_info = (3, 8, 10, 'final', 0)"
    done = run(course, environ | {"PATH": str(tmp_path)}, before=old)
    assert done.returncode == 1
    assert done.stderr == (
        "shardlab: Python 3.8 is too old, the course needs 3.11 or newer: "
        "install one and try again\n"
    )
    executable(tmp_path / "python3.12")
    done = run(course, environ | {"PATH": str(tmp_path)}, before=old)
    assert done.stderr.endswith("run `make lab PYTHON=python3.12`\n")


def test_an_old_python_can_parse_the_script() -> None:
    ast.parse((ROOT / "tools/environment.py").read_text(), feature_version=(3, 7))


def test_the_oldest_python_matches_pyproject() -> None:
    oldest = ".".join(map(str, environment.OLDEST))
    assert f'requires-python = ">={oldest}"' in (ROOT / "pyproject.toml").read_text()


def test_no_python_at_all(course: Path, environ: dict[str, str]) -> None:
    done = subprocess.run(
        ["make", "env", "PYTHON=python-nowhere"],
        cwd=course,
        env=environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "shardlab: 'python-nowhere' does not run: install Python 3.11 or newer" in done.stderr


def test_no_compiler(course: Path, tmp_path: Path, environ: dict[str, str]) -> None:
    done = run(course, environ | {"PATH": str(tmp_path)})
    assert done.returncode == 1
    assert done.stderr.startswith("shardlab: no C++ compiler found")
    assert done.stderr.count("\n") == 1
    assert not (course / ".venv").exists()


def test_no_venv_module(course: Path, environ: dict[str, str]) -> None:
    done = run(course, environ, before="sys.modules['ensurepip'] = None")
    assert done.returncode == 1
    assert done.stderr.startswith("shardlab: this Python has no venv module: install it")
    assert not (course / ".venv").exists()


def test_too_little_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1_500_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    message = r"has 1\.5 GB free and .* take up to \d+ GB: free"
    with pytest.raises(environment.SetupError, match=message):
        environment.check_disk(tmp_path)


def test_no_network(course: Path, environ: dict[str, str]) -> None:
    unreachable = "http://127.0.0.1:9/simple"  # nothing listens there
    done = run(course, environ | {"PIP_INDEX_URL": unreachable})
    assert done.returncode == 1
    assert done.stderr.startswith("shardlab: the package index could not be reached")
    assert done.stderr.count("\n") == 1
    assert not (course / ".venv/.ready").exists()


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ("ERROR: Could not install: [Errno 28] No space left on device", "the disk filled up"),
        ("WARNING: Retrying after NewConnectionError", "the package index could not be reached"),
        ("ERROR: No matching distribution found for x==1", "pip failed (ERROR: No matching"),
        ("Killed", "pip failed (no error line)"),
    ],
)
def test_the_reason_why_pip_failed_is_explained(tmp_path: Path, output: str, sentence: str) -> None:
    log = tmp_path / "install.log"
    log.write_text(f"Collecting x\n{output}\n")
    assert environment.explain(log).startswith(sentence)


# ---- progress


def test_progress_is_read_from_pips_log(tmp_path: Path) -> None:
    log = tmp_path / "install.log"
    log.write_text("")
    assert environment.stage(log) == "starting pip"
    log.write_text("Collecting a==1\nProcessing /wheels/b-2.0-py3-none-any.whl\n")
    assert environment.stage(log) == "2 packages so far: b-2.0"
    log.write_text(log.read_text() + "  Downloading a-1.0-py3-none-any.whl (526.3 MB)\n")
    assert environment.stage(log) == "2 packages so far: a-1.0 (526.3 MB)"
    (tmp_path / "lib/python3.11/site-packages/a-1.dist-info").mkdir(parents=True)
    log.write_text(log.read_text() + "Installing collected packages: a, b\n")
    assert environment.stage(log) == "unpacking package 1 of 2"


def test_valid_python_files_are_compiled_to_bytecode(tmp_path: Path) -> None:
    executable(tmp_path / "bin/python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    packages = tmp_path / "lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    (packages / "module.py").write_text("x = 1\n")
    (packages / "template.py").write_text("{{ not Python }}{{\n")
    environment.compile_all(tmp_path)
    assert [path.name.split(".")[0] for path in packages.rglob("*.pyc")] == ["module"]


# ---- an existing environment


class FakeEnvironment:
    """A .venv whose Python logs its arguments and does not really run pip."""

    def __init__(self, root: Path, pip_status: int = 0) -> None:
        self.root = root
        self.call_log = root / "calls.txt"
        self.stamp = root / ".venv/.ready"
        executable(
            root / ".venv/bin/python",
            f'#!/bin/sh\necho "$@" >> "{self.call_log}"\n'
            f'if [ "$2" = pip ]; then exit {pip_status}; fi\nexec "{sys.executable}" "$@"\n',
        )

    def make(self, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["make", "env"], cwd=self.root, env=environ, capture_output=True, text=True
        )

    @property
    def digest(self) -> str:
        lock = (self.root / "requirements.lock").read_bytes()
        return hashlib.sha256(lock + environment.START.encode()).hexdigest()

    @property
    def pip_calls(self) -> list[str]:
        return [line for line in self.call_log.read_text().splitlines() if " pip " in line]


def test_a_second_start_neither_runs_pip_nor_prints_anything(
    course: Path, environ: dict[str, str]
) -> None:
    fake = FakeEnvironment(course)
    fake.stamp.write_text(fake.digest)
    done = fake.make(environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert fake.pip_calls == []


def test_a_changed_lock_updates_the_environment(course: Path, environ: dict[str, str]) -> None:
    fake = FakeEnvironment(course)
    fake.stamp.write_text("the digest of an older lock")
    done = fake.make(environ)
    assert done.returncode == 0, done.stderr
    assert "requirements.lock has changed" in done.stdout
    packages, own = fake.pip_calls
    assert f"-r {course}/requirements.lock" in packages
    assert f"--no-deps --no-build-isolation -e {course}" in own
    assert fake.stamp.read_text() == fake.digest


def test_a_failed_install_removes_the_stamp(course: Path, environ: dict[str, str]) -> None:
    fake = FakeEnvironment(course, pip_status=1)
    fake.stamp.write_text("the digest of an older lock")
    assert fake.make(environ).returncode != 0
    assert not fake.stamp.exists()


def test_an_environment_is_rejected_for_its_python_only_if_another_is_requested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = executable(tmp_path / "bin/python", "#!/bin/sh\necho '(3, 99)'\n")
    monkeypatch.delenv("PYTHON", raising=False)
    assert environment.runs_wanted_python(tmp_path)
    monkeypatch.setenv("PYTHON", "python3")
    assert not environment.runs_wanted_python(tmp_path)
    python.unlink()
    assert not environment.runs_wanted_python(tmp_path)


@pytest.fixture
def silent_index() -> Iterator[str]:
    """A package index that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/simple"


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_interrupted_install_starts_over(
    course: Path, environ: dict[str, str], silent_index: str
) -> None:
    environ |= {"PIP_INDEX_URL": silent_index}
    log = course / ".venv/install.log"
    process = subprocess.Popen(
        [sys.executable, "tools/environment.py"],
        cwd=course,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: process.poll() is not None or log.exists())
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=WAIT_LIMIT_S)
    assert process.returncode == 130
    assert err == "\nshardlab: interrupted; the next run starts over\n"
    assert not (course / ".venv/.ready").exists()

    done = run(course, environ | {"PIP_NO_INDEX": "1"})
    assert "recreating .venv: it was unfinished" in done.stdout
