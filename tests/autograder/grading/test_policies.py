"""nbgrader's own rules for marks, with our checks: late work, extra credit, manual marks."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from nbgrader.utils import notebook_hash

from autograder import exercises
from tests.autograder.grading.copied_course import (
    Course,
    notebook_of,
    source_of,
    with_answers,
)

LAB = "03_ring_all_reduce"
QUESTION = "from_8_to_64_ranks"  # graded manually
POINTS = {exercise.answer: exercise.points for exercise in exercises.of_lab(LAB)}
DUE = datetime(2026, 10, 1, 12)
EARNED = POINTS["chunk_bounds"]
PENALTY = 0.5 * 2  # see LATE: on the second day
MANUAL, EXTRA = 1.5, 0.5

# As in docs/instructors.md.
LATE = "c.LateDays.points_per_day = 0.5"
EXTENSIONS = f"student,lab,days,until,reason\nearly,{LAB},2,,ill\n"

pytestmark = [pytest.mark.nbgrader, pytest.mark.ranks, pytest.mark.timeout(600)]


@dataclass(frozen=True)
class Marks:
    """One student in the gradebook."""

    score: float  # exported after subtracting the penalty
    penalty: float
    of_question: float | None  # its manual score
    extra: float | None


def marks(course: Course, student: str) -> Marks:
    with course.gradebook as gradebook:
        submission = gradebook.find_submission(LAB, student)
        question = gradebook.find_grade(QUESTION, LAB, LAB, student)
        return Marks(
            score=submission.score,
            penalty=submission.late_submission_penalty,
            of_question=question.manual_score,
            extra=question.extra_credit,
        )


def nbgrader(course: Course, *arguments: str) -> None:
    done = course.nbgrader(*arguments)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Course:
    """Graded: two students with the same answers, one of them 25 hours late."""
    course = Course.create(tmp_path_factory.mktemp("course"))
    course.leave_out_demonstrations(LAB)
    config = course.root / "nbgrader_config.py"
    config.write_text(config.read_text() + LATE)
    (course.root / "grading/extensions.csv").write_text(EXTENSIONS)
    nbgrader(course, "generate_assignment", LAB)
    with course.gradebook as gradebook:
        gradebook.update_or_create_assignment(LAB, duedate=DUE)
    answers = {
        **dict.fromkeys(POINTS, "0"),  # not an answer, so no ranks are started
        "chunk_bounds": source_of(course.solution(LAB), "chunk_bounds"),
        QUESTION: "Twice as many hops of half the size.",
    }
    for student, submitted_at in (
        ("early", "2026-10-01 11:59:59"),
        ("late", "2026-10-02 13:00:00"),
    ):
        course.submit(LAB, student, with_answers(course.released(LAB), answers))
        folder = (course.root / "grading/submitted" / student / notebook_of(LAB)).parent
        (folder / "timestamp.txt").write_text(f"{submitted_at} UTC")
        (folder / "submission_secret.txt").write_text(student * 16)  # as `nbgrader submit` does
    nbgrader(course, "autograde", LAB)
    return course


def test_a_late_submission_gets_the_configured_penalty(course: Course) -> None:
    assert marks(course, "early") == Marks(EARNED, 0, None, None)
    assert marks(course, "late") == Marks(EARNED, PENALTY, None, None)
    with course.gradebook as gradebook:
        assert gradebook.find_submission(LAB, "early").duedate == DUE + timedelta(days=2)
        assert gradebook.find_submission(LAB, "late").duedate == DUE


def test_a_written_answer_needs_manual_grading(course: Course) -> None:
    with course.gradebook as gradebook:
        assert gradebook.find_submission(LAB, "early").needs_manual_grade


def test_manual_marks_and_extra_credit_survive_grading_again(course: Course) -> None:
    for student in ("early", "late"):
        with course.gradebook as gradebook:  # the same fields as formgrader's
            question = gradebook.find_grade(QUESTION, LAB, LAB, student)
            question.manual_score, question.extra_credit = MANUAL, EXTRA
            question.needs_manual_grade = False
            gradebook.find_comment(QUESTION, LAB, LAB, student).manual_comment = "Well put."
            gradebook.db.commit()
    nbgrader(course, "autograde", LAB, "--force")

    total = EARNED + MANUAL + EXTRA
    assert marks(course, "early") == Marks(total, 0, MANUAL, EXTRA)
    assert marks(course, "late") == Marks(total, PENALTY, MANUAL, EXTRA)
    with course.gradebook as gradebook:
        assert gradebook.find_comment(QUESTION, LAB, LAB, "late").comment == "Well put."
        assert not gradebook.find_grade(QUESTION, LAB, LAB, "late").needs_manual_grade
    assert source_of(course.autograded(LAB, "late"), QUESTION) == (
        "Twice as many hops of half the size."
    )


def test_feedback_is_released_through_the_exchange(course: Course) -> None:
    nbgrader(course, "generate_feedback", LAB)
    nbgrader(course, "release_feedback", LAB)
    released = course.root / "grading/exchange/shardlab/feedback"
    assert {path.stem for path in released.iterdir()} == {
        notebook_hash(secret=student * 16, notebook_id=LAB) for student in ("early", "late")
    }


def test_the_export_subtracts_the_penalty(course: Course) -> None:
    nbgrader(course, "export")
    with (course.root / "grading/grades.csv").open() as file:
        rows: dict[str, dict[str, Any]] = {row["student_id"]: row for row in csv.DictReader(file)}
    for student in ("early", "late"):
        found = marks(course, student)
        assert float(rows[student]["raw_score"]) == found.score
        assert float(rows[student]["score"]) == found.score - found.penalty
