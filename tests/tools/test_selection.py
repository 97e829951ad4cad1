"""`make test` leaves out exhaustive tests; CI and whoever names tests runs them as well."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running_lab import ROOT

SETTINGS = """
[tool.pytest.ini_options]
testpaths = ["some"]
markers = ["exhaustive: one of many", "screenshots: only takes some", "long: runs first"]
"""
TESTS = """
import pytest

def test_short(): pass

@pytest.mark.exhaustive
def test_one_of_many(): pass

@pytest.mark.screenshots
def test_takes_a_screenshot(): pass

@pytest.mark.long
def test_long(): pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "some").mkdir()
    (tmp_path / "pyproject.toml").write_text(SETTINGS)
    (tmp_path / "some/conftest.py").write_text("from tests.selection import *\n")
    (tmp_path / "some/test_it.py").write_text(TESTS)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--numprocesses 1", ["long", "short"]),
        ("--numprocesses 1 --all", ["long", "short", "one_of_many"]),
        ("some/test_it.py", ["long", "short", "one_of_many"]),
        ("--numprocesses 1 some/test_it.py", ["long", "short", "one_of_many"]),
        ("--numprocesses 1 -k one_of", ["one_of_many"]),
        ("--screenshots", ["long", "short", "takes_a_screenshot"]),
    ],
)
def test_what_runs(project: Path, arguments: str, expected: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", "-rA", *arguments.split()],
        cwd=project,
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^PASSED \S+::test_(\w+)$", done.stdout, re.M) == expected
    is_complete = "one_of_many" in expected
    assert ("left out: exhaustive tests; ARGS=--all adds them" in done.stdout) is not is_complete
