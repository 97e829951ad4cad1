"""`nbgrader collect` keeps the submission that a newer one replaces, and the report lists it. It
collects nothing that is not the student's own."""

from __future__ import annotations

import os
import pwd
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from nbgrader.api import Gradebook
from nbgrader.apps import NbGraderApp

from autograder.__main__ import main
from tests.autograder.grading.copied_course import REPO, empty_gradebook

LAB = "03_ring_all_reduce"
TIMES = ("2026-10-01 10:00:00 UTC", "2026-10-02 11:00:00 UTC")


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One for all tests: a process keeps the folder of nbgrader's first configuration."""
    root = tmp_path_factory.mktemp("course")
    shutil.copy(REPO / "nbgrader_config.py", root)
    (root / "grading").mkdir()
    (root / "grading/gradebook.db").write_bytes(empty_gradebook())
    with Gradebook(f"sqlite:///{root}/grading/gradebook.db", "shardlab") as gradebook:
        gradebook.add_assignment(LAB)
        gradebook.add_student("ada")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SHARDLAB_DB_URL", raising=False)
        patch.chdir(root)
        yield root


def submit(course: Path, number: int, student: str = "ada") -> Path:
    """As `nbgrader submit` leaves it in the exchange."""
    inbound = course / "grading/exchange/shardlab/inbound"
    folder = inbound / f"{student}+{LAB}+{TIMES[number]}+secret{number}"
    folder.mkdir(parents=True)
    (folder / f"{LAB}.ipynb").write_text(f'{{"cells": [{number}]}}')
    (folder / "timestamp.txt").write_text(TIMES[number])
    return folder


def collect(*options: str) -> None:
    NbGraderApp.clear_instance()
    NbGraderApp.launch_instance(["collect", LAB, *options])
    NbGraderApp.clear_instance()


def test_a_resubmission_overwrites_nothing(
    course: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def collect_all(*options: str) -> None:
        collect("--Collect.check_owner=False", *options)

    current = course / f"grading/submitted/ada/{LAB}"
    earlier = course / f"grading/earlier/ada/{LAB}"
    submit(course, 0)
    collect_all()
    collect_all("--update")
    assert not earlier.exists() or os.listdir(earlier) == []  # nothing newer
    submit(course, 1)
    collect_all("--update")
    assert "[1]" in (current / f"{LAB}.ipynb").read_text()
    (kept,) = earlier.iterdir()
    assert kept.name == "2026-10-01_10-00-00"
    assert "[0]" in (kept / f"{LAB}.ipynb").read_text()
    assert (kept / "timestamp.txt").read_text() == TIMES[0]

    capsys.readouterr()
    assert main(["report", LAB]) == 0
    assert "ada: 1 (2026-10-01_10-00-00)" in capsys.readouterr().out
    page = (course / f"grading/reports/{LAB}.html").read_text()
    assert 'data-earlier="ada"' in page
    (address,) = re.findall(r'<a href="([^"]*)">2026-10-01_10-00-00</a>', page)
    assert (course / "grading/reports" / address / f"{LAB}.ipynb").exists()
    assert main(["report", LAB, "--to", "page.html"]) == 0
    assert (
        f'<a href="grading/earlier/ada/{LAB}/2026-10-01_10-00-00/">'
        in Path("page.html").read_text()
    )


def test_a_submitter_who_is_not_on_the_roster_is_named(
    course: Path, caplog: pytest.LogCaptureFixture
) -> None:
    submit(course, 0, "cid")
    submit(course, 0, "eve")
    collect("--Collect.check_owner=False")
    assert "roster" not in caplog.text  # a course without one
    (course / "grading/roster.csv").write_text("student,first_name\ncid,Cid\nada,Ada\n")
    collect("--Collect.check_owner=False")
    assert (course / f"grading/submitted/eve/{LAB}").exists()
    assert "eve is not on the roster (grading/roster.csv)" in caplog.text
    assert "cid is not on the roster" not in caplog.text


def test_only_regular_files_of_the_student_are_collected(
    course: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Anybody can create a folder in a student's name, or one with links to the solution."""
    (course / "solution.ipynb").write_text("the solution")
    me = pwd.getpwuid(os.geteuid()).pw_name
    submitted = submit(course, 0, me)
    (submitted / "link.ipynb").symlink_to(course / "solution.ipynb")
    (submitted / "hard.ipynb").hardlink_to(course / "solution.ipynb")
    (submitted / "folder").symlink_to(course)
    submit(course, 0, "bob")  # not made by bob
    submit(course, 1, me).rename(course / "elsewhere")
    submitted.with_name(f"{me}+{LAB}+{TIMES[1]}+secret1").symlink_to(course / "elsewhere")
    collect("--Collect.check_owner=True")  # the default, which other tests here change
    collected = course / "grading/submitted" / me / LAB
    assert sorted(os.listdir(collected)) == [f"{LAB}.ipynb", "timestamp.txt"]
    assert "[0]" in (collected / f"{LAB}.ipynb").read_text()
    assert not (course / "grading/submitted/bob").exists()
    assert "in the name of bob, who does not own it" in caplog.text
