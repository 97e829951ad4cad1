"""`make env`: what it says when it cannot, and that it does nothing when there is nothing to do."""

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
    """A repository with nothing but its set-up, and a lock of one package that no index has."""
    root = tmp_path / "course"
    (root / "tools").mkdir(parents=True)
    shutil.copy(ROOT / "tools/environment.py", root / "tools")
    shutil.copy(ROOT / "Makefile", root)
    (root / "requirements.lock").write_text("nowhere-to-be-found==1.0\n")
    return root


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """This process's environment without pip's settings: a test names the index it wants."""
    for name in [*os.environ]:
        if name.startswith("PIP_") or name in ("CXX", "PYTHON", "MAKEFLAGS", "MAKELEVEL"):
            monkeypatch.delenv(name)
    return os.environ | {"PIP_CONFIG_FILE": os.devnull, "PIP_RETRIES": "1"}


def run(root: Path, environ: dict[str, str], before: str = "") -> subprocess.CompletedProcess[str]:
    """Run tools/environment.py after `before`, a line of Python that fakes something."""
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


# ---- what is missing is said in one sentence


def test_a_python_that_is_too_old(course: Path, tmp_path: Path, environ: dict[str, str]) -> None:
    old = "sys.version_info = (3, 8, 10, 'final', 0)"
    said = run(course, environ | {"PATH": str(tmp_path)}, before=old)
    assert said.returncode == 1
    assert said.stderr == (
        "shardlab: Python 3.8 is too old, the course needs 3.11 or newer: "
        "install one and try again\n"
    )
    executable(tmp_path / "python3.12")
    said = run(course, environ | {"PATH": str(tmp_path)}, before=old)
    assert said.stderr.endswith("say `make lab PYTHON=python3.12`\n")


def test_an_old_python_can_read_the_script_that_says_so() -> None:
    ast.parse((ROOT / "tools/environment.py").read_text(), feature_version=(3, 7))


def test_the_oldest_python_is_the_one_in_pyproject() -> None:
    oldest = ".".join(map(str, environment.OLDEST))
    assert f'requires-python = ">={oldest}"' in (ROOT / "pyproject.toml").read_text()


def test_no_python_at_all(course: Path, environ: dict[str, str]) -> None:
    said = subprocess.run(
        ["make", "env", "PYTHON=python-nowhere"],
        cwd=course,
        env=environ,
        capture_output=True,
        text=True,
    )
    assert said.returncode != 0
    assert "shardlab: 'python-nowhere' does not run: install Python 3.11 or newer" in said.stderr


def test_no_compiler(course: Path, tmp_path: Path, environ: dict[str, str]) -> None:
    said = run(course, environ | {"PATH": str(tmp_path)})
    assert said.returncode == 1
    assert said.stderr.startswith("shardlab: no C++ compiler found")
    assert said.stderr.count("\n") == 1
    assert not (course / ".venv").exists()


def test_no_venv_module(course: Path, environ: dict[str, str]) -> None:
    said = run(course, environ, before="sys.modules['ensurepip'] = None")
    assert said.returncode == 1
    assert said.stderr.startswith("shardlab: this Python has no venv module: install it")
    assert not (course / ".venv").exists()


def test_too_little_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1_500_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(environment.Problem, match=r"^1\.5 GB free at .* take up to \d+ GB: free"):
        environment.check_disk(tmp_path)


def test_no_network(course: Path, environ: dict[str, str]) -> None:
    said = run(course, environ | {"PIP_INDEX_URL": "http://127.0.0.1:9/simple"})  # nobody listens
    assert said.returncode == 1
    assert said.stderr.startswith("shardlab: the package index could not be reached")
    assert said.stderr.count("\n") == 1
    assert not (course / ".venv/.ready").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("ERROR: Could not install: [Errno 28] No space left on device", "the disk filled up"),
        ("WARNING: Retrying after NewConnectionError", "the package index could not be reached"),
        ("ERROR: No matching distribution found for x==1", "pip failed (ERROR: No matching"),
        ("Killed", "pip failed (no error line)"),
    ],
)
def test_why_pip_failed(tmp_path: Path, words: str, sentence: str) -> None:
    log = tmp_path / "install.log"
    log.write_text(f"Collecting x\n{words}\n")
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


def test_all_that_is_python_gets_its_bytecode(tmp_path: Path) -> None:
    executable(tmp_path / "bin/python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    packages = tmp_path / "lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    (packages / "module.py").write_text("x = 1\n")
    (packages / "template.py").write_text("{{ no Python }}{{\n")
    environment.compile_all(tmp_path)
    assert [path.name.split(".")[0] for path in packages.rglob("*.pyc")] == ["module"]


# ---- an environment that is there


class FakeEnvironment:
    """A .venv whose Python notes what it is asked and, asked for pip, only pretends."""

    def __init__(self, root: Path, pip_status: int = 0) -> None:
        self.root = root
        self.notes = root / "asked.txt"
        self.stamp = root / ".venv/.ready"
        executable(
            root / ".venv/bin/python",
            f'#!/bin/sh\necho "$@" >> "{self.notes}"\n'
            f'if [ "$2" = pip ]; then exit {pip_status}; fi\nexec "{sys.executable}" "$@"\n',
        )

    def make(self, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["make", "env"], cwd=self.root, env=environ, capture_output=True, text=True
        )

    @property
    def digest(self) -> str:
        return hashlib.sha256((self.root / "requirements.lock").read_bytes()).hexdigest()

    @property
    def pip_calls(self) -> list[str]:
        return [line for line in self.notes.read_text().splitlines() if " pip " in line]


def test_a_second_start_calls_no_pip_and_says_nothing(
    course: Path, environ: dict[str, str]
) -> None:
    made = FakeEnvironment(course)
    made.stamp.write_text(made.digest)
    said = made.make(environ)
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")
    assert made.pip_calls == []


def test_a_changed_lock_is_installed_into_it(course: Path, environ: dict[str, str]) -> None:
    made = FakeEnvironment(course)
    made.stamp.write_text("the digest of an older lock")
    said = made.make(environ)
    assert said.returncode == 0, said.stderr
    assert "requirements.lock has changed" in said.stdout
    packages, own = made.pip_calls
    assert f"-r {course}/requirements.lock" in packages
    assert f"--no-deps --no-build-isolation -e {course}" in own
    assert made.stamp.read_text() == made.digest


def test_a_failed_install_does_not_look_finished(course: Path, environ: dict[str, str]) -> None:
    made = FakeEnvironment(course, pip_status=1)
    made.stamp.write_text("the digest of an older lock")
    assert made.make(environ).returncode != 0
    assert not made.stamp.exists()


def test_another_python_is_taken_only_if_asked_for(
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
    """An index that takes connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/simple"


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_interrupted_install_is_begun_anew(
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
    _, words = process.communicate(timeout=WAIT_LIMIT_S)
    assert process.returncode == 130
    assert words == "\nshardlab: stopped; the next try starts over\n"
    assert not (course / ".venv/.ready").exists()

    said = run(course, environ | {"PIP_NO_INDEX": "1"})
    assert "making .venv anew: it was unfinished" in said.stdout
