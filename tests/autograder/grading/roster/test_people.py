"""`python -m autograder rename` and `remove` lose nothing, and nothing is graded again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nbgrader.apps import NbGrader
from nbgrader.converters import GenerateAssignment
from nbgrader.coursedir import CourseDirectory

from autograder.__main__ import main
from autograder.grading.command import grade_class
from autograder.grading.gradebook import student_rows
from tests.autograder.grading.copied_course import Course, with_answers
from tests.autograder.grading.fake_class import FakePool

LAB = "03_ring_all_reduce"
QUESTION = "from_8_to_64_ranks"

pytestmark = [
    pytest.mark.nbgrader,
    pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning"),  # nbgrader's own queries
]


@pytest.fixture
def pool() -> FakePool:
    return FakePool()


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: FakePool) -> Course:
    """Ada and Bob are graded, Ada also by hand, and she has an extension and a group."""
    made = Course.create(tmp_path)
    monkeypatch.delenv("SHARDLAB_DB_URL", raising=False)
    monkeypatch.chdir(made.root)
    monkeypatch.setattr(grade_class, "open_pool", lambda *_: pool)
    app = NbGrader()
    app.initialize([])
    GenerateAssignment(coursedir=CourseDirectory(parent=app, assignment_id=LAB), parent=app).start()
    table = "student,name,email,canvas_id\nada,Ada Lovelace,ada@x.org,1\nbob,Bob Lee,bob@x.org,2\n"
    (made.root / "students.csv").write_text(table)
    assert main(["roster", "students.csv"]) == 0
    with made.gradebook as gradebook:
        gradebook.update_or_create_assignment(LAB, duedate="2026-10-01 12:00:00")
    for student, worth in (("ada", 2), ("bob", 1)):
        answers = {"chunk_bounds": f"# worth {worth}\npass", QUESTION: "Because."}
        made.submit(LAB, student, with_answers(made.released(LAB), answers))
    earlier = made.root / f"grading/earlier/ada/{LAB}/2026-09-30_10-00-00"
    earlier.mkdir(parents=True)
    (earlier / f"{LAB}.ipynb").write_text("{}")
    page = made.root / f"grading/feedback/ada/{LAB}/{LAB}.html"
    page.parent.mkdir(parents=True)
    page.write_text("<p>")
    rows = f"student,lab,days,until,reason\nada,{LAB},7,,ill\nbob,{LAB},1,,\n"
    (made.root / "grading/extensions.csv").write_text(rows)
    groups = "group,login_id,e-mail,name\nA,,,ada Lovelace\nA,,bob@x.org,\n"
    (made.root / "grading/groups.csv").write_text(groups)
    assert main(["grade", LAB]) == 0
    with made.gradebook as gradebook:
        question = gradebook.find_grade(QUESTION, LAB, LAB, "ada")
        question.manual_score, question.extra_credit = 1.5, 0.25
        question.needs_manual_grade = False
        gradebook.find_comment(QUESTION, LAB, LAB, "ada").manual_comment = "Well put."
        gradebook.db.commit()
    pool.graded.clear()
    return made


@pytest.fixture
def run(course: Course, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def run(*arguments: str, code: int = 0) -> str:
        ended = main([*arguments])
        printed = capsys.readouterr()
        assert ended == code, printed
        return printed.err if code == 2 else printed.out

    return run


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def rows(course: Course, student: str) -> dict[str, Any]:
    with course.gradebook as gradebook:
        found = student_rows.read(gradebook, student)
    assert found is not None
    return found


def files(course: Course) -> dict[str, bytes]:
    """Without those of removed students."""
    grading = course.root / "grading"
    found = [path for path in grading.rglob("*") if path.is_file() and path.suffix != ".db"]
    paths = {str(path.relative_to(grading)): path for path in found}
    return {
        name: path.read_bytes()
        for name, path in paths.items()
        if not name.startswith("removed/") and not name.endswith(".lock")
    }


def test_a_renamed_student_keeps_everything(
    course: Course, run: Callable[..., str], pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, old = rows(course, "ada"), files(course)
    assert before["submissions"][0]["extension_s"] == 7 * 86400
    printed = run("rename", "ada", "Ada.King")
    assert "ada is now Ada.King: labs in the gradebook: 1, submitted: 1, autograded: 1" in printed
    after = rows(course, "Ada.King")
    assert after["submissions"] == before["submissions"]
    assert {**after["student"], "id": "ada"} == before["student"]
    assert {name.replace("Ada.King", "ada") for name in files(course)} == set(old)
    assert f"Ada.King,{LAB},7,,ill" in (course.root / "grading/extensions.csv").read_text()
    roster = (course.root / "grading/roster.csv").read_text()
    assert "Ada.King,Ada,Lovelace,ada@x.org,1" in roster
    assert "\nada," not in roster
    assert "nothing to grade" in run("grade", LAB)
    assert pool.graded == []
    assert rows(course, "Ada.King")["submissions"] == before["submissions"]

    assert "there is no student 'ada'" in run("rename", "ada", "eve", code=2)
    both = files(course)
    refused = run("rename", "bob", "Ada.King", code=2)
    assert f"both have a submission for {LAB}: marks cannot be combined" in refused
    assert "begins with a dot" in run("rename", "bob", ".bob", code=2)
    assert files(course) == both

    before = rows(course, "bob")
    with monkeypatch.context() as patched:
        patched.setattr(student_rows, "give_to", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run("rename", "bob", "rob")
    run("rename", "bob", "rob")
    assert rows(course, "rob")["submissions"] == before["submissions"]
    assert "nothing to grade" in run("grade", LAB)


def test_a_removed_student_comes_back_with_the_mark(
    course: Course, run: Callable[..., str], pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, old = rows(course, "ada"), files(course)
    with monkeypatch.context() as patched:
        patched.setattr(student_rows, "delete_all", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run("remove", "ada")
    assert "remove ada --undo" in run("remove", "ada")
    assert not [name for name in files(course) if "ada" in name.split("/")]
    for name in ("roster", "groups", "extensions"):
        text = (course.root / f"grading/{name}.csv").read_text()
        assert "ada" not in text
        assert "bob" in text
    assert "nothing to grade" in run("grade", LAB)
    assert "there is no student 'ada'" in run("remove", "ada", code=2)
    assert "(removed: ada)" in run("remove", "eve", "--undo", code=2)
    printed = run("roster", "students.csv", code=3)  # still lists her
    assert "1 unchanged" in printed
    assert "ada was removed, so not added: run `python -m autograder remove ada --undo`" in printed

    # A new submission before the old one is back
    folder = course.root / f"grading/submitted/ada/{LAB}"
    course.submit(LAB, "ada", course.released(LAB))
    assert f"ada has a newer submission for {LAB}" in run("remove", "ada", "--undo", code=2)
    (folder / f"{LAB}.ipynb").unlink()
    folder.rmdir()

    with monkeypatch.context() as patched:
        patched.setattr(student_rows, "write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run("remove", "ada", "--undo")
    assert "ada is back" in run("remove", "ada", "--undo")
    assert "2 unchanged" in run("roster", "students.csv")
    assert rows(course, "ada") == before
    now = files(course)
    assert now.keys() == old.keys()
    assert {n for n in old if now[n] != old[n]} <= {
        "extensions.csv", "groups.csv", "roster.csv"
    }  # fmt: skip
    assert "nothing to grade" in run("grade", LAB)
    assert pool.graded == []
    assert rows(course, "ada") == before


def test_two_spellings_of_one_id_are_not_two_students(
    course: Course, run: Callable[..., str], pool: FakePool
) -> None:
    course.submit(LAB, "Bob", course.released(LAB))
    printed = run("grade", LAB, code=3)
    assert "'Bob' differs from bob only in its spelling" in printed
    assert pool.graded == []
    table = course.root / "students.csv"
    for row in ("Bob,Bob Lee,,", "lee7,Bob Lee,bob@x.org,", "lee7,Bob Lee,,2"):
        table.write_text(f"student,name,email,canvas_id\n{row}\n")
        new = row.partition(",")[0]
        hint = f"If bob is now {new}, run `python -m autograder rename bob {new}` first"
        assert hint in run("roster", "students.csv", code=2)
    run("rename", "bob", "lee7")
    table.write_text("student,name,email\nlee7,Bob Lee,bob@x.org\n")
    assert "1 unchanged" in run("roster", "students.csv")
