"""`python -m autograder feedback --archive`: every page reaches its own student."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest
from nbgrader.api import Gradebook

from autograder.__main__ import main
from autograder.pages.scores import Scores, digest, read_scores
from tests.autograder.grading.copied_course import REPO, empty_gradebook

LAB = "03_ring_all_reduce"
PEOPLE = {  # {student: (first name, last name)}
    "ada": ("Ada", "Lovelace"),
    "noetheremmy": ("", ""),
    "s3": ("", ""),  # known only by what they submitted
    "s4": ("", ""),  # the same notebook as s5
    "s5": ("", ""),
    "zoe": ("Zoe", "Absent"),  # wrote text instead of submitting a file
    "late": ("", ""),  # no feedback page
}
SAME = ("s4", "s5")


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(REPO / "nbgrader_config.py", tmp_path)
    grading = tmp_path / "grading"
    grading.mkdir()
    (grading / "gradebook.db").write_bytes(empty_gradebook())
    with Gradebook(f"sqlite:///{grading}/gradebook.db") as gradebook:
        gradebook.check_course("shardlab")
        gradebook.add_assignment(LAB)
        for student, (first, last) in PEOPLE.items():
            gradebook.add_student(student, first_name=first, last_name=last)
        scores = {each.student: each for each in read_scores(gradebook, LAB)}
    for student in PEOPLE:
        for step, name, text in (
            ("submitted", f"{LAB}.ipynb", notebook(student)),
            ("feedback", f"{LAB}.html", f"{tag(scores[student])}page of {student}"),
        ):
            if (step, student) != ("feedback", "late"):
                folder = grading / step / student / LAB
                folder.mkdir(parents=True)
                (folder / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tag(scores: Scores) -> str:
    """The tag that identifies the grade that a page shows."""
    return f'<meta name="shardlab-grade" content="{digest(scores, "")}">'


def notebook(student: str) -> str:
    return f"notebook of {SAME if student in SAME else student}"


def download(to: Path, files: dict[str, str]) -> str:
    """``files``: {path in the zip: student whose notebook it is}."""
    with zipfile.ZipFile(to, "w") as file:
        for path, student in files.items():
            file.writestr(path, notebook(student))
    return str(to)


def pages(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as file:
        assert file.testzip() is None
        return {name: file.read(name).decode().rpartition(">")[2] for name in file.namelist()}


def run(*options: str) -> int:
    return main(["feedback", LAB, *options])


def test_a_folder_for_each_student(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    assert "6 feedback pages\nwithout one: late\n" in capsys.readouterr().out
    assert not list((course / "grading").glob("*.zip"))
    assert run("--archive") == 0
    written = course / f"grading/feedback-{LAB}.zip"
    assert pages(written) == {f"{s}/{LAB}.html": f"page of {s}" for s in PEOPLE if s != "late"}
    before = written.read_bytes()
    assert run("--archive") == 0
    assert written.read_bytes() == before


def test_moodle_gets_folders_with_its_own_numbers(
    course: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = download(
        course / "moodle.zip",
        {
            f"Áda Lovelace_11_assignsubmission_file_/{LAB}.ipynb": "ada",
            "Emmy Noether_12_assignsubmission_file/my copy.ipynb": "noetheremmy",
            f"C D_13_assignsubmission_file_{LAB}.ipynb": "s3",  # the flat form
            f"E F_14_assignsubmission_file_/{LAB}.ipynb": "s4",
            f"G H_15_assignsubmission_file_/{LAB}.ipynb": "s5",
            "E F_14_assignsubmission_onlinetext_/onlinetext.html": "s4",
            "Zoe Absent_16_assignsubmission_onlinetext/onlinetext.html": "zoe",
            "readme.txt": "nobody",
        },
    )
    assert run("--archive", "--platform", "moodle", "--from", theirs) == 3
    found = pages(course / f"grading/feedback-{LAB}-moodle.zip")
    assert found == {
        f"Áda Lovelace_11_assignsubmission_file_/{LAB}.html": "page of ada",
        f"Emmy Noether_12_assignsubmission_file_/{LAB}.html": "page of noetheremmy",
        f"C D_13_assignsubmission_file_/{LAB}.html": "page of s3",
        f"Zoe Absent_16_assignsubmission_file_/{LAB}.html": "page of zoe",
    }
    # As Moodle reads it: the second of at least four parts is the number.
    assert all(path.split("/")[0].split("_", 4)[1].isdigit() for path in found)
    assert ": s4, s5\n" in capsys.readouterr().out


def test_canvas_gets_names_with_its_own_numbers(course: Path) -> None:
    folder = course / "canvas"
    folder.mkdir()
    for name, student in (
        (f"lovelaceada_LATE_101_9001_{LAB}.ipynb", "ada"),
        (f"lovelaceada_101_9007_{LAB}-1.ipynb", "ada"),  # the newest
        (f"noetheremmy_102_9002_{LAB}.ipynb", "noetheremmy"),
        (f"cd_103_9003_{LAB}.ipynb", "s3"),
    ):
        (folder / name).write_text(notebook(student))
    to = course / "back.zip"
    # Nothing else in this course says who 104 is.
    (folder / f"xy_104_9004_{LAB}.ipynb").write_text("another notebook")
    (course / "grading/roster.csv").write_text("student,canvas_id\nzoe,104\n")
    options = ("--archive", "--platform", "canvas", "--from", str(folder), "--to", str(to))
    assert run(*options) == 3
    found = pages(to)
    assert found == {
        f"lovelaceada_101_9007_{LAB}.html": "page of ada",
        f"noetheremmy_102_9002_{LAB}.html": "page of noetheremmy",
        f"cd_103_9003_{LAB}.html": "page of s3",
        f"xy_104_9004_{LAB}.html": "page of zoe",
    }
    # As Canvas reads it: the first two parts that are numbers.
    numbers = {tuple(part for part in name.split("_") if part.isdigit())[:2] for name in found}
    assert numbers == {("101", "9007"), ("102", "9002"), ("103", "9003"), ("104", "9004")}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--platform", "gradescope"), "Gradescope cannot import feedback files"),
        (("--platform", "moodle"), "pass that zip with --from"),
        (("--platform", "moodle", "--from", "nbgrader_config.py"), "nor a readable zip"),
        (("--platform", "canvas", "--from", "grading"), "is named as Canvas does it"),
        (("--from", "grading"), "--from requires --platform"),
    ],
)
def test_errors_of_the_archive_say_what_to_do(
    course: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], words: str
) -> None:
    assert run("--archive", *options) == 2
    assert words in capsys.readouterr().err
    assert not list((course / "grading").glob("*.zip"))


@pytest.mark.parametrize("option", ["--platform=moodle", "--from=moodle.zip", "--to=x.zip"])
def test_options_of_the_archive_require_it(
    course: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert run(option) == 2
    assert "require --archive: add it" in capsys.readouterr().err


def test_without_pages_the_error_names_the_command_to_run_first(
    course: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(course / "grading/feedback")
    assert run("--archive") == 2
    assert f"run `nbgrader generate_feedback {LAB}` first" in capsys.readouterr().err


def test_an_unknown_lab_is_named(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["feedback", "03_ring"]) == 2
    assert "the gradebook contains no lab '03_ring'" in capsys.readouterr().err
