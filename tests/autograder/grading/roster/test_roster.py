"""`python -m autograder roster` imports students into the gradebook and grading/roster.csv."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from nbgrader.api import Gradebook

from autograder.__main__ import main
from autograder.grading.roster.roster import NotFound, Person, Roster
from tests.autograder.grading.copied_course import REPO, empty_gradebook


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(REPO / "nbgrader_config.py", tmp_path)
    (tmp_path / "grading").mkdir()
    (tmp_path / "grading/gradebook.db").write_bytes(empty_gradebook())
    monkeypatch.delenv("SHARDLAB_DB_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def roster(course: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs the command on this table and returns what it prints."""

    def roster(table: str, code: int = 0, encoding: str = "utf-8") -> str:
        (course / "students.csv").write_bytes(table.encode(encoding))
        assert main(["roster", "students.csv"]) == code
        printed = capsys.readouterr()
        return printed.err if code else printed.out

    return roster


def gradebook(course: Path) -> Gradebook:
    return Gradebook(f"sqlite:///{course}/grading/gradebook.db")


def test_students_are_added_updated_and_never_deleted(
    course: Path, roster: Callable[..., str]
) -> None:
    with gradebook(course) as before:
        before.add_student("old")
        before.add_student("ada")
        before.add_assignment("lab")
        before.add_submission("lab", "ada", timestamp=datetime(2026, 10, 1))
    first = "Student,Name,Email address,Canvas ID,Tutor\nada,Ada Lovelace,ada@x.org,12,Z\n"
    printed = roster(first + 'bob,"O\'Neil, Bob",,,Z\n', encoding="utf-8-sig")
    assert "1 added: bob" in printed
    assert "1 updated: ada" in printed
    assert "1 in the gradebook, but not on the roster: old" in printed
    assert "1 column not used: Tutor" in printed
    with gradebook(course) as after:
        ada, bob = after.find_student("ada"), after.find_student("bob")
        assert (ada.first_name, ada.last_name, ada.lms_user_id) == ("Ada", "Lovelace", "12")
        assert (bob.first_name, bob.last_name) == ("Bob", "O'Neil")
        assert len(ada.submissions) == 1
        assert {student.id for student in after.students} == {"ada", "bob", "old"}

    # A missing column or row keeps what was there.
    printed = roster("student\tmoodle_name\nada\tAda King\n")
    assert "1 updated: ada" in printed
    assert "1 on the roster, but not in students.csv: bob" in printed
    assert "1 unchanged" in roster("student\tmoodle_name\nada\tAda King\n")
    with (course / "grading/roster.csv").open() as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert rows["ada"]["email"] == "ada@x.org"
    assert rows["ada"]["moodle_name"] == "Ada King"
    assert rows["bob"]["last_name"] == "O'Neil"


def test_an_emptied_cell_empties_what_was_there(course: Path, roster: Callable[..., str]) -> None:
    table = "student,name,email,canvas_id,moodle_name\nada,Ada Lovelace,{},{},{}\n"
    roster(table.format("ada@x.org", 12, "Ada King"))
    emptied = table.format("", "", "")
    printed = roster(emptied)
    assert "1 updated: ada" in printed
    assert (
        "3 emptied, as in the table: email of ada, canvas_id of ada, moodle_name of ada" in printed
    )
    assert "1 unchanged\nwrote" in roster(emptied)
    assert "ada,Ada,Lovelace,,,,,\n" in (course / "grading/roster.csv").read_text()
    with gradebook(course) as after:
        ada = after.find_student("ada")
        assert (ada.first_name, ada.email, ada.lms_user_id) == ("Ada", None, None)


CANVAS = """\
Student,ID,SIS User ID,SIS Login ID,Section,Warm-up (76)
,,,,,Manual Posting
"    Points Possible",,,,,10
"Lovelace, Ada",101,s1,ada,Tuesday,9
"Student, Test",199,,f00,Tuesday,
"""


@pytest.mark.parametrize(
    ("table", "student", "login"),
    [(CANVAS, "ada", "ada"), (CANVAS.replace("SIS Login ID", "Root Account"), "s1", "")],
)
def test_canvas_export_of_the_gradebook_is_a_roster(
    course: Path, roster: Callable[..., str], table: str, student: str, login: str
) -> None:
    assert f"1 added: {student}\n" in roster(table)
    with (course / "grading/roster.csv").open() as file:
        (row,) = csv.DictReader(file)
    found = [row[name] for name in ("student", "first_name", "last_name", "canvas_id")]
    assert found == [student, "Ada", "Lovelace", "101"]
    assert row["canvas_login"] == login


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("student,email\nada,a@x.org\nbob,A@x.org\n", "a@x.org belongs to several students"),
        ("student\nada\nbob\nada\n", "ada is in lines 2 and 4: keep one of them"),
        ("student\na/b\n.c\n", "line 3: '.c' cannot be used as a student's id: it begins with"),
        ("student,canvas_id\nada,x12\n", "line 2: canvas_id 'x12' is not a number"),
        ("student,email\n,\n", "lists no students"),
        ("name,e_mail_2\nAda,\n", "needs a column `student`"),
        ("email,mail\na,b\n", "several columns for email"),
        ("", "is empty"),
    ],
)
def test_an_invalid_table_changes_nothing(
    course: Path, roster: Callable[..., str], table: str, message: str
) -> None:
    assert message in roster(table, code=2)
    assert not (course / "grading/roster.csv").exists()
    with gradebook(course) as unchanged:
        assert unchanged.students == []


def test_a_table_that_contradicts_the_roster_is_rejected(roster: Callable[..., str]) -> None:
    roster("student,canvas_id\nada,12\n")
    assert "contradict each other" in roster("student,canvas_id\nbob,12\n", code=2)
    assert "save it as `CSV UTF-8`" in roster("student\nJosé\n", code=2, encoding="latin-1")


def test_a_groups_name_is_not_a_students() -> None:
    ada = Person("al1", "Ada", "Lovelace", moodle_name="A. King")
    names = ("lovelaceada", "Ada M. Lovelace", "aking", "team 1", "Lovelace and Bob")
    assert [ada.may_be_called(name) for name in names] == [True, True, True, False, False]
    assert Person("al1").may_be_called("team 1")  # nothing is known


def test_platform_names_map_to_one_student_or_to_none() -> None:
    people = Roster(
        [
            Person("ann", "Ann", "Lee-Ho", email="ann@x.org", canvas_id="1"),
            Person("lee1", "Kim", "Lee", canvas_login="klee"),
            Person("lee2", "Kim", "Lee"),
        ]
    )
    assert people.find(canvas_id="1", name="somebody") == "ann"
    assert people.find(canvas_id="9", name="leehoann") == "ann"
    assert people.find(ids=("ANN@x.org",)) == "ann"
    assert people.find(ids=("klee",), name="Kim Lee") == "lee1"
    with pytest.raises(NotFound, match="could be lee1 or lee2: add their canvas_id"):
        people.find(name="Kim Lee")
    with pytest.raises(NotFound, match="Kim is not on the roster"):
        people.find(name="Kim")
