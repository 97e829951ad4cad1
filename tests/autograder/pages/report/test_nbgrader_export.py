"""`nbgrader export` writes the same points as `python -m autograder export`."""

from __future__ import annotations

import csv
from pathlib import Path

from autograder.pages.scores import read_scores
from tests.autograder.pages.feedback.graded_course import LAB, QUESTION, GradedCourse, Submission


def test_a_mark_for_an_earlier_answer_is_kept_but_not_exported(tmp_path: Path) -> None:
    graded = GradedCourse(tmp_path)
    graded.grade("ann", Submission(manual_score=0.5, penalty=1.0))
    graded.grade("bob", Submission(manual_score=0.5))
    graded.grade("cid", Submission(manual_score=0.5, penalty=30.0))
    graded.enroll("dan")
    with graded.gradebook as gradebook:  # bob changed his answer and submitted again
        gradebook.find_grade(QUESTION, LAB, LAB, "bob").needs_manual_grade = True
        gradebook.db.commit()
    done = graded.nbgrader("export")
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "grading/grades.csv", newline="") as file:
        rows = {row["student_id"]: row for row in csv.DictReader(file)}
    with graded.gradebook as gradebook:
        totals = {scores.student: scores.total for scores in read_scores(gradebook, LAB)}
        assert gradebook.find_grade(QUESTION, LAB, LAB, "bob").manual_score == 0.5
    assert {student: float(row["score"]) for student, row in rows.items()} == totals
    assert {student: float(row["raw_score"]) for student, row in rows.items()} == {
        "ann": 22.5, "bob": 22.0, "cid": 22.5, "dan": 0.0,
    }  # fmt: skip
