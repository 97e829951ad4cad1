"""`python -m autograder export --platform`: what Canvas and Moodle import."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from autograder.__main__ import main
from autograder.grading.record.record import hash_of_submission
from tests.autograder.pages.feedback.graded_course import LAB, GradedCourse, Submission

CANVAS = f"""\
Student,ID,SIS User ID,SIS Login ID,Section,Warm-up (76),{LAB} (77),Current Score
,,,,,,Manual Posting,
"    Points Possible",,,,,10,24.00,(read only)
"Lovelace, Ada",101,s1,ada,Tuesday,9,3,90
"Noether, Emmy",102,s2,ben,Tuesday,8,,80
"Kovalevskaya, Sofja",103,s3,sk12,Tuesday,7,,70
"Germain, Sophie",104,s4,excused,Tuesday,7,EX,70
"Student, Test",199,,f00,Tuesday,,,
"""
MOODLE = (
    "\ufeffVorname;Nachname;E-Mail-Adresse;Aufgabe: Other (Punkte);"
    f'"Aufgabe: {LAB} (Real)";"Aufgabe: {LAB} (Feedback)";Heruntergeladen\n'
    "Ada;Lovelace;Ada@Example.org;1,5;-;gut;1791000000\n"
    "Søren;Kovalevskaya;zoe.k@example.org;1,5;-;;1791000000\n"  # a different person
    "Zoe;Absent;zoe.a@example.org;1,5;-;;1791000000\n"
)


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> GradedCourse:
    graded = GradedCourse(tmp_path_factory.mktemp("course"))
    graded.enroll("ada", first_name="Ada", last_name="Lovelace", email="ada@example.org")
    graded.enroll("kovalevskayasofja", first_name="Sofja", last_name="Kovalevskaya")
    graded.enroll("absent", first_name="=1+2", last_name="")
    graded.grade("ada", Submission(manual_score=2.0))
    graded.grade("ben", Submission())  # the written answer is not graded
    graded.grade("kovalevskayasofja", Submission(manual_score=0.5, penalty=1.0))
    graded.grade("excused", Submission(manual_score=0.5))
    graded.grade("zoe", Submission(manual_score=0.0))  # on no platform
    return graded


@pytest.fixture
def export(
    course: GradedCourse, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., tuple[int, str]]:
    """Runs `export` with a platform's file; returns (exit status, what was written)."""
    monkeypatch.chdir(course.root)

    def export(platform: str, text: str | None, *options: str) -> tuple[int, str]:
        source, to = tmp_path / "theirs.csv", tmp_path / "ours.csv"
        to.unlink(missing_ok=True)
        if text is not None:
            source.write_text(text, encoding="utf-8")
            options = (*options, "--from", str(source))
        code = main(["export", LAB, "--platform", platform, "--to", str(to), *options])
        return code, to.read_text(encoding="utf-8") if to.exists() else ""

    return export


def test_canvas_gets_its_own_file_back_with_points(
    export: Callable[..., tuple[int, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    code, written = export("canvas", CANVAS)
    assert code == 3  # there is no row for zoe's points
    theirs = list(csv.reader(CANVAS.splitlines()))
    ours = list(csv.reader(written.splitlines()))
    changed = {
        (row[0], theirs[0][place]): cell
        for row, before in zip(ours, theirs, strict=True)
        for place, cell in enumerate(row)
        if cell != before[place]
    }
    column = f"{LAB} (77)"
    assert changed == {
        ("Lovelace, Ada", column): "24",
        ("Kovalevskaya, Sofja", column): "21.5",  # by the name in Canvas's downloads
    }
    printed = capsys.readouterr().err
    assert f"{LAB}: 2 points written to column '{column}'" in printed
    assert "not completely graded, so left unchanged: ben" in printed
    assert "left unchanged: excused (EX)" in printed
    assert "zoe (has points), absent" in printed
    assert "on the platform, but not in the gradebook: Student, Test 199 f00" in printed


def test_moodle_in_another_language_with_semicolons(
    export: Callable[..., tuple[int, str]],
) -> None:
    code, written = export("moodle", MOODLE)
    assert code == 3
    assert written == MOODLE.replace("1,5;-;gut", "1,5;24;gut").replace('"', "")


def test_a_lab_with_another_name_on_the_platform(
    export: Callable[..., tuple[int, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    other = CANVAS.replace(f"{LAB} (77)", "Ring (77)")
    assert export("canvas", other) == (2, "")
    printed = capsys.readouterr().err
    assert f"has no column of {LAB}: choose one with --column {LAB}=NAME" in printed
    assert "'Ring (77)'" in printed
    code, written = export("canvas", other, "--column", f"{LAB}=Ring")
    assert code == 3
    assert '"Lovelace, Ada",101,s1,ada,Tuesday,9,24,90' in written


def test_a_resubmission_that_is_not_graded_changes_no_cell(
    course: GradedCourse,
    export: Callable[..., tuple[int, str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The gradebook has the points of the submission before it."""
    folder = course.root / "grading/submitted/ada" / LAB
    folder.mkdir(parents=True)
    shutil.copy(course.root / f"grading/autograded/ada/{LAB}/{LAB}.ipynb", folder)
    try:
        code, written = export("canvas", CANVAS)
        assert code == 3
        assert '"Lovelace, Ada",101,s1,ada,Tuesday,9,3,90' in written
        assert "not completely graded, so left unchanged: ada, ben" in capsys.readouterr().err
        assert main(["export", LAB]) == 0
        assert f"ada,Lovelace,Ada,{LAB},resubmission not graded yet," in capsys.readouterr().out
        assert main(["report", LAB]) == 0
        assert "resubmission not graded yet      1  ada\n" in capsys.readouterr().out
        # The same submission as was graded.
        record = course.root / f"grading/records/{LAB}/ada.json"
        before = record.read_text()
        same = hash_of_submission((folder / f"{LAB}.ipynb").read_bytes(), "", ())
        record.write_text(
            before.replace('"submission_hash": "key-of-ada"', f'"submission_hash": "{same}"')
        )
        assert main(["export", LAB]) == 0
        assert f"ada,Lovelace,Ada,{LAB},graded," in capsys.readouterr().out
        record.write_text(before)
    finally:
        shutil.rmtree(folder.parent)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            CANVAS.replace("24.00", "100"),
            "has '100' points possible, but 03_ring_all_reduce has 24",
        ),
        (CANVAS.replace("Warm-up (76)", f"{LAB} (76)"), "several columns"),
        (MOODLE, "no column 'ID'"),
        ("", "is empty"),
    ],
)
def test_a_file_that_cannot_be_filled_in_is_rejected(
    export: Callable[..., tuple[int, str]],
    capsys: pytest.CaptureFixture[str],
    text: str,
    words: str,
) -> None:
    assert export("canvas", text) == (2, "")
    assert words in capsys.readouterr().err


def test_without_a_file_of_the_platform_a_new_one_is_written(
    export: Callable[..., tuple[int, str]],
) -> None:
    code, written = export("canvas", None)
    rows = list(csv.reader(written.splitlines()))
    assert code == 0
    assert rows[:3] == [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", LAB],
        ["    Points Possible", "", "", "", "", "24"],
        ["'=1+2", "", "", "absent", "", ""],
    ]
    assert ["Lovelace, Ada", "", "", "ada", "", "24"] in rows
    written = export("moodle", None)[1]
    assert f"First name,Last name,ID number,Email address,{LAB}\n" in written
    assert "Ada,Lovelace,ada,ada@example.org,24\n" in written
    assert ",,ben,,\n" in written
