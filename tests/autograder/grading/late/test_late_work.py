"""A term with two labs: late days, extensions, penalties."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
from nbgrader.api import Gradebook
from traitlets.config import Config

from autograder.__main__ import main
from autograder.grading.course_time import use_timezone
from tests.autograder.grading.copied_course import REPO, empty_gradebook

FIRST, SECOND = "01_one_device", "03_ring_all_reduce"
POLICY = """
use_timezone(c, "Europe/Berlin")
c.LateDays.share_per_day = 0.1
c.LateDays.max_share = 0.25
c.LateDays.free_days = 2
"""
TABLE = "student,lab,days,until,reason\n"


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Labs of 20 points, due at noon in Berlin on October 1st and 8th; everybody has 18."""
    shutil.copy(REPO / "nbgrader_config.py", tmp_path)
    with (tmp_path / "nbgrader_config.py").open("a") as config:
        config.write(POLICY)
    (tmp_path / "grading").mkdir()
    (tmp_path / "grading/gradebook.db").write_bytes(empty_gradebook())
    with gradebook_of(tmp_path) as gradebook:
        gradebook.check_course("shardlab")
        for lab, day in ((FIRST, 1), (SECOND, 8)):
            gradebook.add_assignment(lab, duedate=datetime(2026, 10, day, 10))
            gradebook.add_notebook(lab, lab)
            gradebook.add_grade_cell("check_it", lab, lab, max_score=20, cell_type="code")
        submitted = {
            "ada": ("2026-10-01 10:00", "2026-10-08 10:00"),
            "bob": ("2026-10-02 10:00", "2026-10-10 10:00:01"),  # 1 and 3 days late
            "cyd": (None, "2026-10-12 09:00"),  # 4 days late
        }
        for student, times in submitted.items():
            gradebook.add_student(student)
            for lab, time in zip((FIRST, SECOND), times, strict=True):
                if time:
                    at = datetime.fromisoformat(time)
                    gradebook.add_submission(lab, student, timestamp=at)
                    gradebook.find_grade("check_it", lab, lab, student).auto_score = 18
        gradebook.db.commit()
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    use_timezone(Config(), "UTC")


def gradebook_of(course: Path) -> Gradebook:
    return Gradebook(f"sqlite:///{course}/grading/gradebook.db")


def penalties(course: Path) -> dict[str, list[float]]:
    """{student: the penalty for each lab}"""
    with gradebook_of(course) as gradebook:
        return {
            student.id: [s.late_submission_penalty for s in student.submissions]
            for student in gradebook.students
        }


def test_free_days_extensions_and_their_withdrawal(
    course: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    no_penalties = {"ada": [0, 0], "bob": [0, 0], "cyd": [0]}
    assert main(["late", "--dry-run"]) == 0
    assert "bob, 03_ring_all_reduce: late penalty 0 -> 4" in capsys.readouterr().out
    assert penalties(course) == no_penalties
    # bob: 1 free of 1, then 1 free of 3. cyd: 2 of 4 are free.
    assert main(["late"]) == 0
    assert penalties(course) == {"ada": [0, 0], "bob": [0, 4], "cyd": [4]}
    assert main(["late"]) == 0
    assert capsys.readouterr().out.endswith("changed in the gradebook:\nnothing\n")

    # A spreadsheet's semicolons; bob has two more days for the first lab, so keeps both free ones.
    table = course / "grading/extensions.csv"
    table.write_text(
        "\ufeffstudent;lab;days;until;reason\n"
        f"bob;{FIRST};2;;ill\n"
        f"cyd;{SECOND};;2026-10-11;moved\n"
        f"ada;{SECOND};;2026-10-09 18:00;=1+2\n"
        f"zoe;{SECOND};1;;\n",
        encoding="utf-8",
    )
    assert main(["late"]) == 0
    printed = capsys.readouterr()
    assert "line 5: the gradebook has no student 'zoe' (yet)" in printed.err
    row = next(line for line in printed.out.splitlines() if line.startswith("cyd"))
    assert row.split() == [
        "cyd", SECOND, "2026-10-11", "23:59", "CEST", "extended", "2026-10-12", "11:00", "CEST",
        "1", "1", "0",
    ]  # fmt: skip
    written = course / f"grading/submitted/bob/{SECOND}/timestamp.txt"
    written.parent.mkdir(parents=True)
    written.write_text("2026-10-10 12:00:01\n")  # in Berlin: the time in the gradebook
    assert main(["late", "--dry-run"]) == 0
    assert "timestamp.txt" not in capsys.readouterr().err
    written.write_text("2026-10-09 10:00:00 UTC\n")
    assert main(["late", "--dry-run"]) == 0
    warning = capsys.readouterr().err
    assert f"{written} is not in the gradebook yet: run `python -m autograder grade" in warning
    first = course / f"grading/submitted/cyd/{FIRST}/timestamp.txt"  # not in the gradebook yet
    first.parent.mkdir(parents=True)
    for path in (written, first):
        path.write_text("02.10.2026\n")
        assert main(["late", "--dry-run"]) == 3
        assert f"{path} contains '02.10.2026', which is not a time" in capsys.readouterr().err
        path.unlink()
    assert "ill" not in printed.out  # a reason may be private
    assert penalties(course) == {"ada": [0, 0], "bob": [0, 2], "cyd": [0]}
    with gradebook_of(course) as gradebook:
        assert gradebook.find_submission(SECOND, "ada").duedate == datetime(2026, 10, 9, 16)

    # Without a due date nobody is late, and nbgrader cannot handle an extension.
    with gradebook_of(course) as gradebook:
        gradebook.find_assignment(SECOND).duedate = None
        gradebook.db.commit()
    assert main(["late"]) == 0
    assert penalties(course) == {"ada": [0, 0], "bob": [0, 0], "cyd": [0]}
    with gradebook_of(course) as gradebook:
        assert gradebook.find_submission(SECOND, "ada").extension is None
        gradebook.find_assignment(SECOND).duedate = datetime(2026, 10, 8, 10)
        gradebook.db.commit()

    table.write_text(TABLE)
    assert main(["late"]) == 0
    assert "due 2026-10-03 12:00 CEST -> 2026-10-01 12:00 CEST" in capsys.readouterr().out
    assert penalties(course) == {"ada": [0, 0], "bob": [0, 4], "cyd": [4]}


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("student", "Bob@x.org"), ("E-mail", "bob@x.org"), ("login_id", "blee"),
        ("Canvas ID", "7"), ("Name", "Lee Bob"),
    ],
)  # fmt: skip
def test_an_extension_names_the_student_as_the_roster_does(
    course: Path, capsys: pytest.CaptureFixture[str], column: str, cell: str
) -> None:
    roster = "student,first_name,last_name,email,canvas_login,canvas_id\n"
    roster += "bob,Bob,Lee,bob@x.org,blee,7\nkim1,Kim,Lee,,,\nkim2,Kim,Lee,,,\n"
    (course / "grading/roster.csv").write_text(roster)
    table = course / "grading/extensions.csv"
    table.write_text(f"{column},lab,days,until,reason\n{cell},{FIRST},2,,\n")
    assert main(["late"]) == 0
    assert penalties(course)["bob"] == [0, 2]
    table.write_text(f"name,lab,days,until,reason\nEve,{FIRST},2,,\nKim Lee,{FIRST},2,,\n")
    assert main(["late"]) == 2
    error = capsys.readouterr().err
    assert "line 2: Eve is not on the roster" in error
    assert "line 3: could be kim1 or kim2" in error


def test_wrong_rows_are_named_before_anything_changes(
    course: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = course / "grading/extensions.csv"
    table.write_text(
        TABLE
        + f"bob,{FIRST},2,,\nbob,{FIRST},3,,\nbob,{SECOND},many,,\nbob,03_rign,1,,\n,{FIRST},1,,\n"
        + f"bob,{SECOND},1,2026-10-09,\nbob,{SECOND},,2026-10-02,\nbob,{SECOND},,soon,\n"
        + f"ada,{SECOND},,10.11.2026,\nada,{SECOND},,2026-13-01,\n"
    )
    before = penalties(course)
    assert main(["late"]) == 2
    error = capsys.readouterr().err
    for line, words in (
        (3, "bob has an extension in line 2 already"),
        (4, "days is 'many', not a number"),
        (5, f"there is no lab '03_rign' in the gradebook (it has: {FIRST}, {SECOND})"),
        (6, "the student is missing"),
        (7, "write either days (such as 3) or until"),
        (8, "2026-10-02 is before the due date"),
        (9, "until is 'soon', not a date"),
        (10, "until is '10.11.2026', not a date"),
        (11, "until is '2026-13-01', not a date"),
    ):
        assert f"line {line}: {words}" in error
    table.write_text("student,lab,until,reason\n")
    assert main(["late"]) == 2
    assert "line 1: there is no column 'days'" in capsys.readouterr().err
    table.write_bytes("student,lab,days,until,reason\nÄnne".encode("latin-1"))
    assert main(["late"]) == 2
    assert "is not UTF-8" in capsys.readouterr().err
    assert penalties(course) == before


def test_penalties_of_an_instructors_own_plugin_are_kept(
    course: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (course / "nbgrader_config.py").open("a") as config:
        config.write('c.AssignLatePenalties.plugin_class = "nbgrader.plugins.LateSubmissionPlugin"')
    assert main(["late"]) == 0
    assert "sets another plugin" in capsys.readouterr().out
    assert penalties(course) == {"ada": [0, 0], "bob": [0, 0], "cyd": [0]}


def test_without_a_policy_manual_penalties_are_kept(
    course: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = course / "nbgrader_config.py"
    without = "".join(
        line for line in config.read_text().splitlines(True) if not line.startswith("c.LateDays")
    )
    config.write_text(without)
    with gradebook_of(course) as gradebook:
        for notebook in gradebook.find_submission(SECOND, "bob").notebooks:
            notebook.late_submission_penalty = 3.5
        gradebook.db.commit()
    assert main(["late"]) == 0
    printed = capsys.readouterr().out
    assert "Penalties stay as they are: nbgrader_config.py sets no c.LateDays." in printed
    assert printed.endswith("changed in the gradebook:\nnothing\n")
    assert penalties(course) == {"ada": [0, 0], "bob": [0, 3.5], "cyd": [0]}
    config.write_text(without + "c.LateDays.share_per_day = 0\n")  # a policy without penalties
    assert main(["late"]) == 0
    assert penalties(course)["bob"] == [0, 0]


def test_due_dates_are_shown_in_words(course: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """nbgrader may have read 08.10.2026 as August 10."""
    assert main(["late", "--dry-run"]) == 0
    shown = f"{FIRST} is due on Thursday, 1 October 2026, 12:00 CEST.\n"
    assert shown in capsys.readouterr().out
    with gradebook_of(course) as gradebook:
        gradebook.find_assignment(FIRST).duedate = datetime(2026, 1, 10, 11)
        gradebook.db.commit()
    assert main(["late", "--dry-run"]) == 0
    assert (
        f"{FIRST} is due on Saturday, 10 January 2026, 12:00 CET. 2 of 2 submissions are late: if "
        f"you meant Thursday, 1 October 2026, 12:00 CEST, run `nbgrader db assignment add {FIRST} "
        '--duedate "2026-10-01 12:00:00"`'
    ) in capsys.readouterr().out


def test_the_reader_of_the_output_may_stop(course: Path) -> None:
    command = f"{sys.executable} -m autograder late --dry-run | true; exit ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONPATH": str(REPO), "PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=course, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_a_locked_gradebook_is_not_a_stopped_server(
    course: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = course / "grading/gradebook.db"
    monkeypatch.setenv("SHARDLAB_DB_URL", f"sqlite:///{path}?timeout=0.1")
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert main(["late"]) == 2
    said = capsys.readouterr().err
    assert "database is locked" in said
    assert "Another program is writing to it, such as formgrader" in said
    assert "Start the database" not in said
