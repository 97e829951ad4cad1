"""A resubmission with the same written answer stays graded; a changed answer is graded again."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from nbgrader.api import Gradebook
from nbgrader.apps import NbGrader
from nbgrader.converters import Autograde
from nbgrader.coursedir import CourseDirectory

from autograder.__main__ import main
from autograder.grading.command import grade_class
from autograder.grading.gradebook import run_and_decide
from tests.autograder.grading.copied_course import Course, with_answers
from tests.autograder.grading.fake_class import FakePool

LAB = "03_ring_all_reduce"
QUESTION = "from_8_to_64_ranks"
ANSWER = "Twice as many hops\nof half the size."
PICTURE = "![hops](attachment:hops.png)"

pytestmark = [
    pytest.mark.nbgrader,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning"),  # nbgrader's own queries
]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Course:
    course = Course.create(tmp_path_factory.mktemp("released"))
    done = course.nbgrader("generate_assignment", LAB)
    assert done.returncode == 0, done.stderr[-3000:]
    return course


@pytest.fixture
def course(released: Course, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    root = tmp_path / "course"
    subprocess.run(["cp", "-r", released.root, root], check=True)
    monkeypatch.chdir(root)
    pool = FakePool()
    monkeypatch.setattr(grade_class, "open_pool", lambda *_: pool)
    monkeypatch.setattr(run_and_decide, "_one_worker", lambda _: pool)
    return Course(root)


def submit(course: Course, student: str, written: str, worth: int, picture: str = "") -> None:
    answers = {"chunk_bounds": f"# worth {worth}\npass", QUESTION: written}
    notebook = with_answers(course.released(LAB), answers)
    for cell in notebook["cells"]:
        if picture and cell["id"] == QUESTION:
            cell["attachments"] = {"hops.png": {"image/png": picture}}
    path = course.root / "grading/submitted" / student / LAB / f"{LAB}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(notebook))


def grade(command: str) -> None:
    if command == "grade":
        assert main(["grade", LAB]) == 0
        return
    app = NbGrader()
    app.initialize([])
    coursedir = CourseDirectory(parent=app, assignment_id=LAB)
    Autograde(
        coursedir=coursedir, parent=app, force=True
    ).start()  # as `nbgrader autograde --force`


def grade_manually(gradebook: Gradebook, student: str) -> None:
    """The same fields as formgrader's."""
    question = gradebook.find_grade(QUESTION, LAB, LAB, student)
    question.manual_score, question.extra_credit = 1.5, 0.25
    question.needs_manual_grade = False
    gradebook.find_comment(QUESTION, LAB, LAB, student).manual_comment = "Well put."
    gradebook.db.commit()


@pytest.mark.parametrize("command", ["grade", "nbgrader autograde"])
def test_an_unchanged_written_answer_stays_graded(course: Course, command: str) -> None:
    first = {
        "same": (ANSWER, ""), "spaces": (ANSWER, ""), "changed": (ANSWER, ""),
        "drawing": (PICTURE, "AAAA"), "redrawn": (PICTURE, "AAAA"),
    }  # fmt: skip
    second = first | {
        "spaces": (f"\n{ANSWER}  \n", ""), "changed": (f"{ANSWER} Or not.", ""),
        "redrawn": (PICTURE, "BBBB"),
    }  # fmt: skip
    for student, (written, picture) in first.items():
        submit(course, student, written, worth=1, picture=picture)
    grade(command)
    with course.gradebook as gradebook:
        for student in first:
            grade_manually(gradebook, student)

    for student, (written, picture) in second.items():
        submit(course, student, written, worth=2, picture=picture)
    grade(command)
    waiting = {"same": False, "spaces": False, "changed": True, "drawing": False, "redrawn": True}
    for _ in range(2):
        with course.gradebook as gradebook:
            for student, waits in waiting.items():
                assert gradebook.find_grade("check_chunk_bounds", LAB, LAB, student).score == 2
                question = gradebook.find_grade(QUESTION, LAB, LAB, student)
                assert (question.manual_score, question.extra_credit) == (1.5, 0.25)
                comment = gradebook.find_comment(QUESTION, LAB, LAB, student)
                assert comment.manual_comment == "Well put."
                assert question.needs_manual_grade == waits, student
        grade(command)  # an answer that waits is still waiting


def test_an_answer_missing_in_the_gradebook_is_not_taken_for_the_graded_one(
    course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is saved before the gradebook is written: a run may be killed in between."""
    submit(course, "ann", ANSWER, worth=1)
    grade("grade")
    with course.gradebook as gradebook:
        grade_manually(gradebook, "ann")
    submit(course, "ann", "Something else.", worth=1)
    with monkeypatch.context() as patch:
        patch.setattr(grade_class._GradingRun, "_write", lambda *_, **__: None)
        grade("grade")
    grade("grade")
    with course.gradebook as gradebook:
        question = gradebook.find_grade(QUESTION, LAB, LAB, "ann")
        assert question.manual_score == 1.5
        assert question.needs_manual_grade
