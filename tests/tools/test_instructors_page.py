"""The shell commands of docs/instructors.md run in the order of the page, for two students."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.running_lab import copy_repository
from tests.tools.shell import environment, instructors_commands

pytestmark = [pytest.mark.long, pytest.mark.ranks, pytest.mark.nbgrader]
LAB = "03_ring_all_reduce"
# {how a command begins: why it is not run here}
NOT_RUN = {
    "make env": "in test_environment.py",
    ". .venv/bin/activate": "the test names the environment's folder",
    "sudo ": "needs an administrator",
    "make lab": "in test_commands.py",
    "dask scheduler": "in tests/autograder/grading/pool/test_cluster.py",
    "ssh ": "needs other machines",
    "sbatch ": "needs Slurm",
    "python -m autograder grade LAB --scheduler": "in test_cluster.py, with a scheduler of its own",
    "createdb ": "needs a database server",
    "python -m autograder move-gradebook": "in tests/autograder/grading/gradebook/test_postgres.py",
    "export SHARDLAB_DB_URL": "needs a database server",
}
CANVAS_CSV = f"""Student,ID,SIS User ID,SIS Login ID,Section,{LAB} (77)
    Points Possible,,,,,{{points}}
"Lovelace, Ada",12345,,ada,A,
"Holmes, Bob",333,,bob,A,
"""
ROSTER = "student,first_name,last_name,email,canvas_id\nada,Ada,Lovelace,ada@example.org,12345\n"
MOODLE_CSV = f"First name,Last name,Email address,Assignment: {LAB} (Real)\nAda,Lovelace,ada@example.org,-\nBob,Holmes,bob@example.org,-\n"  # noqa: E501


def submissions(repository: Path) -> None:
    lab = (repository / f"labs/{LAB}/{LAB}.ipynb").read_text()
    names = {
        "submissions.zip": ("lovelaceada_12345_900_lab.ipynb", "holmesbob_333_901_lab.ipynb"),
        "canvas.zip": ("lovelaceada_12345_900_lab.ipynb", "holmesbob_333_901_lab.ipynb"),
        "moodle.zip": (
            "Ada Lovelace_5_assignsubmission_file_/lab.ipynb",
            "Bob Holmes_6_assignsubmission_file_/lab.ipynb",
        ),
    }
    for archive, files in names.items():
        with zipfile.ZipFile(repository / archive, "w") as packed:
            for name in files:
                packed.writestr(name, lab)
    (repository / "students.csv").write_text(f"{ROSTER}bob,Bob,Holmes,bob@example.org,333\n")
    (repository / "CANVAS.csv").write_text(CANVAS_CSV.format(points=20))
    (repository / "MOODLE.csv").write_text(MOODLE_CSV)
    shutil.copytree(repository / "labs", repository / "last-year/cyd")


def test_the_page_walks_through_a_term(tmp_path: Path) -> None:
    repository = copy_repository(tmp_path / "shardlab", only_lab=LAB)
    (repository / ".venv").symlink_to(sys.prefix)
    settings = environment(repository) | {
        "PATH": f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
    }

    def run(command: str) -> str:
        done = subprocess.run(
            ["bash", "-euc", command],
            cwd=repository, env=settings, stdin=subprocess.DEVNULL,
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        print(command, done.stdout[-300:], sep="\n")
        return done.stdout

    run("python -m autograder build")  # its notebooks link to chapters that this copy lacks
    submissions(repository)
    for command in instructors_commands():
        if not command.startswith(tuple(NOT_RUN)):
            download = "moodle.zip" if "moodle" in command else "canvas.zip"
            run(
                command.replace("LAB", LAB)
                .replace("DOWNLOAD.zip", download)
                .replace("/archive/2025/submitted", "last-year")
            )
    assert (repository / f"grading/feedback/ada/{LAB}/{LAB}.html").exists()
    assert "bob" in (repository / "grading/exercises.csv").read_text()


def test_each_exception_is_on_the_page() -> None:
    listed = {
        start for start in NOT_RUN if any(c.startswith(start) for c in instructors_commands())
    }
    assert listed == set(NOT_RUN)
