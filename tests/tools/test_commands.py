"""Runs the commands in README, CONTRIBUTING and the Makefile, long ones in a short form.

`make env` is in test_environment.py. `make test` runs this suite, and `make check` comes before it.
Commands with conda and sudo are not run.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from tests.running_lab import ROOT, START_LIMIT_S, copy_repository
from tests.tools.shell import environment, instructors_commands, shell
from tools.lock import oldest_python

pytestmark = pytest.mark.long
LAB = "03_ring_all_reduce"
IN_CI = {"make env", "make test", "make test ARGS=--all", "make check"}
NOT_INSTALLED = {"conda", "sudo"}  # not available on test machines
TESTED = set[str]()


def runs(*commands: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Marks a test that runs these documented commands, possibly with other arguments."""
    TESTED.update(commands)
    return lambda test: test


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository, with the environment of this one."""
    root = copy_repository(tmp_path_factory.mktemp("commands") / "shardlab", only_lab=LAB)
    (root / ".venv").symlink_to(sys.prefix)
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    # Build again: the notebooks link to chapters that are not in this copy.
    shell(root, f"{sys.executable} -m autograder build")
    return root


@runs('make suite ARGS="tests/tools -k lock"', 'make suite ARGS="tests/shardlab"')
@runs('make suite ARGS="tests/autograder/exercises -k NN_name"')
@runs('make suite ARGS="tests/autograder/pages/similar"')
@runs('make suite ARGS="--screenshots tests/chapters"')
def test_make_suite_runs_some_tests(repository: Path) -> None:
    # One worker, because each takes seconds to start.
    chosen = "--screenshots --numprocesses 1 tests/tools/test_project.py -k lock"
    printed = shell(repository, f'make suite ARGS="{chosen}"')
    assert re.search(r"\d passed", printed)
    assert "slowest 10 durations" in printed


@runs("make build")
def test_make_build_restores_a_lab(repository: Path) -> None:
    lab = repository / f"labs/{LAB}/{LAB}.ipynb"
    before = lab.read_bytes()
    lab.unlink()
    assert f"built labs/{LAB}/{LAB}.ipynb" in shell(repository, "make build")
    assert lab.read_bytes() == before


@runs("python -m tools.openers", "python -m tools.openers --record NN_name")
@pytest.mark.ranks
def test_an_opener_is_recorded_and_drawn(repository: Path) -> None:
    chapter = "03_ring_all_reduce"
    drawn = repository / f"course/chapters/openers/{chapter}.svg"
    drawn.unlink()
    printed = shell(repository, f"{sys.executable} -m tools.openers --record {chapter}")
    assert f"openers/{chapter}.svg)" in printed  # the markdown cell
    assert drawn.read_text().startswith("<svg")


@runs("python -m tests.submissions NN_name the_mistake")
def test_a_planted_mistake_is_printed(repository: Path) -> None:
    printed = shell(repository, f"{sys.executable} -m tests.submissions {LAB} sum_instead_of_mean")
    assert printed.startswith("def ring_all_reduce(")


@runs("python -m autograder times NN_name")
def test_times_are_measured_and_stored(repository: Path) -> None:
    tiny = repository / "course/chapters/90_tiny.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell("1 + 1")]), tiny)
    printed = shell(repository, f"{sys.executable} -m autograder times 90_tiny")
    tiny.unlink()
    assert re.fullmatch(r" *\d+\.\d s  course/chapters/90_tiny.ipynb\n", printed)
    stored = json.loads((repository / "autograder/build/run_times.json").read_text())
    assert stored["run_s"]["course/chapters/90_tiny.ipynb"] > 0


@runs("make picture")
@pytest.mark.ranks
def test_make_picture_draws_the_readmes_picture(repository: Path) -> None:
    picture = repository / "docs/traffic.png"
    picture.unlink()
    shell(repository, "make picture")
    assert picture.read_bytes().startswith(b"\x89PNG")


@runs("make bench")
@pytest.mark.exhaustive
@pytest.mark.ranks
@pytest.mark.nbgrader
@pytest.mark.timeout(900)  # two minutes on an idle machine
def test_make_bench_in_a_short_form(repository: Path, tmp_path: Path) -> None:
    printed = shell(repository, "make bench ARGS=--tiny", limit_s=880, HOME=str(tmp_path))
    for launcher in ("bare fork + gloo", "mp.spawn", "notebook_launcher", "torchrun --standalone"):
        assert re.search(rf"{re.escape(launcher)} +\d", printed), launcher
    assert "launch at several world sizes" in printed
    assert "stock over ours, 1 students" in printed
    assert "SQLite, stock" in printed
    assert "SQLite, ours" in printed
    assert re.search(r"100 Mbit/s asked +\d+\.\d+ Mbit/s measured", printed)


@runs("make lab", 'make lab ARGS="--no-browser --port 9000"', "python tools/lab.py")
@runs("make lab PYTHON=python3.12")  # only `make env` uses PYTHON
@runs("make lab ARGS=--instructor")
@pytest.mark.parametrize("more", ["", " --instructor"])
def test_make_lab_serves_the_course(repository: Path, tmp_path: Path, more: str) -> None:
    server = subprocess.Popen(
        ["make", "lab", f"ARGS=--no-browser --port 0{more}"],
        cwd=repository,
        env=environment(repository)
        | {"HOME": str(tmp_path), "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # so that make, the shell and JupyterLab can be ended together
        text=True,
    )
    try:
        assert server.stdout is not None
        address = None
        deadline = time.monotonic() + START_LIMIT_S
        while address is None and time.monotonic() < deadline:
            line = server.stdout.readline()
            address = re.search(r"http://\S+token=\w+", line)
        assert address is not None
        url = address[0].replace("/lab/tree", "/api/contents")
        while True:  # the address is printed before the server listens
            with contextlib.suppress(urllib.error.URLError):
                with urllib.request.urlopen(url, timeout=30) as answer:
                    assert b"00_start_here" in answer.read()
                break
            assert time.monotonic() < deadline
            time.sleep(0.1)
        with urllib.request.urlopen(address[0], timeout=30) as answer:
            config = re.search(
                r'id="jupyter-config-data"[^>]*>(.*?)</script>', answer.read().decode(), re.S
            )
        assert config is not None
        hidden = str(json.loads(config[1])["disabledExtensions"])
        assert ("nbgrader" in hidden) is (not more)  # readers do without nbgrader's menu
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.communicate(timeout=60)


@runs("make lock")
def test_make_lock_pins_what_pip_resolves(tmp_path: Path) -> None:
    """With a folder of two packages as the index."""
    for name, needs in (("course", "Requires-Dist: helper\n"), ("helper", "")):
        with zipfile.ZipFile(tmp_path / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            info = f"{name}-1.0.dist-info"
            wheel.writestr(f"{info}/METADATA", f"Name: {name}\nVersion: 1.0\n{needs}")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools/lock.py", tmp_path / "tools")
    shutil.copy(ROOT / "Makefile", tmp_path)
    oldest = oldest_python(ROOT / "pyproject.toml")
    (tmp_path / "pyproject.toml").write_text(
        f'[project]\nrequires-python = ">={oldest}"\ndependencies = ["course>=1"]\n'
    )
    python = shutil.which(f"python{oldest}")
    if python is None:
        pytest.skip(f"no python{oldest}")
    index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    shell(tmp_path, f"make lock PYTHON={python}", **index)
    pins = (tmp_path / "requirements.lock").read_text().splitlines()
    assert pins[3:] == ["course==1.0", "helper==1.0"]


@runs("make clean")
def test_make_clean_keeps_student_work_and_grades(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for folder in (".venv", "dist", "tests/artifacts", "labs/__pycache__", "grading/submitted"):
        (tmp_path / folder).mkdir(parents=True)
    shell(tmp_path, "make clean")
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert left == {"Makefile", "tests", "labs", "grading", "grading/submitted"}


def instructors_block() -> list[str]:
    block = re.search(r"^```\n(\. \.venv/bin/activate\n.*?)^```", readme(), re.M | re.S)
    assert block
    return [line.partition("#")[0].strip() for line in block[1].splitlines()]


def readme() -> str:
    return (ROOT / "README.md").read_text()


@runs(*instructors_block(), "nbgrader export")
@runs("nbgrader autograde")  # in tests/autograder/grading/test_nbgrader.py
def test_the_readmes_commands_for_instructors_are_on_their_page_in_the_same_order() -> None:
    """test_instructors_page.py runs them, in this order."""
    rest = iter(instructors_commands())
    for command in instructors_block():
        expected = command.replace(LAB, "LAB")
        assert expected in rest, f"not in docs/instructors.md, or in another order: {command}"
    assert "nbgrader export" in instructors_commands()


@runs("python -m autograder mutants", "python -m autograder mutants NN_name")
@pytest.mark.ranks
def test_mutants_of_one_exercise(repository: Path) -> None:
    python = f"{sys.executable} -m autograder mutants"
    chosen = f"{LAB} --only bytes_per_rank --sample 2 --jobs 1"
    printed = shell(repository, f"{python} {chosen}")
    assert re.search(r"ring_all_reduce.bytes_per_rank +2 +2 +0 +0$", printed, re.M)


@runs("python -m shardlab doctor")
def test_the_doctor_describes_this_machine() -> None:
    printed = shell(ROOT, f"{sys.executable} -m shardlab doctor")
    names = [line[:18].strip() for line in printed.splitlines()]
    assert {"cores", "memory", "/dev/shm", "user namespaces", "torch", "chapters"} < {*names}
    assert len(names) < 24  # one screen
    assert re.search(r"^chapters +all \d\d run here", printed, re.M)


@runs("python -m shardlab export 03 hub_all_reduce --launch 1 --to script.py")
def test_a_function_of_a_chapter_becomes_a_script(tmp_path: Path) -> None:
    """tests/shardlab/export runs such scripts under torchrun."""
    arguments = f"export 03 hub_all_reduce --launch 1 --to {tmp_path}/script.py"
    shell(ROOT, f"{sys.executable} -m shardlab {arguments}")
    assert "run_on_this_rank(hub_all_reduce, length)" in (tmp_path / "script.py").read_text()


@runs("python -m shardlab preflight --nnodes 2 --endpoint HEAD:29400")
def test_preflight_on_one_node() -> None:
    """tests/shardlab/preflight runs it on two."""
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    arguments = f"preflight --nnodes 1 --endpoint localhost:{port}"
    assert "✓ nothing found" in shell(ROOT, f"{sys.executable} -m shardlab {arguments}")


@runs("python -m autograder script 03_ring_all_reduce reduce_scatter --to script.py")
def test_an_answer_becomes_a_script(tmp_path: Path) -> None:
    """tests/autograder/job runs such scripts under torchrun."""
    arguments = f"script {LAB} reduce_scatter --to {tmp_path}/script.py"
    shell(ROOT, f"{sys.executable} -m autograder {arguments}")
    assert 'check_in_job("ring_all_reduce.reduce_scatter"' in (tmp_path / "script.py").read_text()


def commands_on(page: str) -> set[str]:
    """Lines of code blocks, and code in prose that begins with a program's name."""
    text = (ROOT / page).read_text()
    blocks = re.findall(r"^```\n(.*?)^```", text, re.M | re.S)
    lines = {line.partition(" #")[0].strip() for block in blocks for line in block.splitlines()}
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    program = r"`((?:make|nbgrader|python|conda|sudo) [^`\n]+)`"
    return (lines | set(re.findall(program, prose))) - {""}


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_every_documented_command_is_run(page: str) -> None:
    documented = {
        command for command in commands_on(page) if command.split()[0] not in NOT_INSTALLED
    }
    assert documented - TESTED - IN_CI == set()


def test_every_target_of_the_makefile_is_run() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets.remove("help")  # in test_project.py
    tested = {command.split()[1] for command in TESTED | IN_CI if command.startswith("make ")}
    assert set(targets) <= tested
