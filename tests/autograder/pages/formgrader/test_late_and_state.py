"""formgrader's lists show the points that are exported, late penalties and states."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from nbgrader.server_extensions.formgrader import base, handlers
from tornado.web import HTTPError
from traitlets.config import Config

from autograder.grading.gradebook.database import GradebookError
from autograder.pages import formgrader
from autograder.pages.formgrader import class_report
from autograder.pages.formgrader.api import ClassAPI
from autograder.pages.scores import read_scores
from tests.autograder.pages.feedback.graded_course import LAB, QUESTION, GradedCourse, Submission
from tests.autograder.pages.formgrader.class_api import api_of


@pytest.fixture
def graded(tmp_path: Path) -> GradedCourse:
    graded = GradedCourse(tmp_path)
    graded.grade("ann", Submission(manual_score=0.0, penalty=1.0))
    graded.grade("bob", Submission(manual_score=1.5, state="tampering", reason="`import ctypes`"))
    graded.grade("cid", Submission(penalty=30.0, has_record=False))
    (tmp_path / "solutions" / LAB).mkdir(parents=True)
    for student in ("ann", "bob", "cid", "dan"):
        folder = tmp_path / "grading/submitted" / student / LAB
        folder.mkdir(parents=True)
        (folder / "timestamp.txt").write_text(f"{Submission().at} UTC")
    with graded.gradebook as gradebook:  # bob submitted again: his mark waits to be confirmed
        marked = gradebook.find_submission_notebook(LAB, LAB, "bob")
        for grade in marked.grades:
            grade.needs_manual_grade = grade.name == QUESTION
        gradebook.db.commit()
    return graded


@pytest.fixture
def api(graded: GradedCourse) -> ClassAPI:
    return api_of(graded, Config())


def shown(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["score"], row.get("late_penalty", 0.0), row["state"]


def test_every_list_has_the_exported_points(graded: GradedCourse, api: ClassAPI) -> None:
    with graded.gradebook as gradebook:
        exported = {scores.student: scores.total for scores in read_scores(gradebook, LAB)}
    expected = {
        "ann": (21.0, 1.0, "graded"),
        "bob": (22.0, 0.0, "tampering"),
        "cid": (0.0, 30.0, ""),
    }
    assert exported == {student: points for student, (points, _, _) in expected.items()}

    listed = {row["student"]: row for row in api.get_submissions(LAB)}
    assert {student: shown(row) for student, row in listed.items()} == {
        **expected, "dan": (0.0, 0.0, ""),
    }  # fmt: skip
    rows = api.get_notebook_submissions(LAB, LAB)
    assert {row["student"]: shown(row) for row in rows} == expected
    for student in expected:
        assert shown(api.get_submission(LAB, student) or {}) == expected[student]
        (row,) = api.get_student_submissions(student)
        assert row is not None
        assert shown(row) == expected[student]
    students = {row["id"]: row["score"] for row in api.get_students()}
    assert students == {**exported, "dan": 0.0}
    assert {name: (api.get_student(name) or {})["score"] for name in students} == students


def test_averages_are_of_the_listed_points(api: ClassAPI) -> None:
    (lab,), (notebook,) = api.get_assignments(), api.get_notebooks(LAB)
    for row in (lab, notebook):
        assert row["average_score"] == pytest.approx((21 + 22 + 0) / 3)
        assert row["average_written_score"] == 0  # bob's mark of 1.5 is pending, ann's is 0


def test_one_students_lab_has_state_and_penalty(api: ClassAPI, graded: GradedCourse) -> None:
    """The list of a student's notebooks, which nbgrader builds without our queries."""
    for student, expected in {
        "ann": (21.0, 1.0, "graded"),
        "bob": (22.0, 0.0, "tampering"),
    }.items():
        (row,) = api.get_student_notebook_submissions(student, LAB)
        assert shown(row) == expected
    (graded.root / "grading/autograded/bob" / LAB / f"{LAB}.ipynb").unlink()
    (missing,) = api.get_student_notebook_submissions("bob", LAB)
    assert (missing["score"], missing["state"]) == (0, "tampering")
    assert api.get_student_notebook_submissions("dan", LAB) == []


@pytest.mark.parametrize("has_question", [True, False])
def test_every_list_of_submissions_loads_the_script(
    monkeypatch: pytest.MonkeyPatch, api: ClassAPI, graded: GradedCourse, has_question: bool
) -> None:
    if not has_question:
        with graded.gradebook as gradebook:
            gradebook.find_grade_cell(QUESTION, LAB, LAB).cell_type = "code"
            gradebook.db.commit()
    monkeypatch.setattr(base, "NbGraderAPI", None)
    monkeypatch.setattr(base.BaseHandler, "gradebook", base.BaseHandler.gradebook)
    monkeypatch.setattr(base.BaseHandler, "render", lambda self, name, **_: "<head></head>")
    formgrader._load_jupyter_server_extension(Mock())
    handler = Mock(api=api, coursedir=api.coursedir, settings={"nbgrader_gradebook": "theirs"})
    for name in formgrader.LISTS:
        assert (Path(handlers.template_path) / name).exists()
        page = base.BaseHandler.render(handler, name, assignment_id=LAB)
        assert "late-penalty" in page
        # Only a lab's own lists lead to its written answers.
        is_of_lab = name in formgrader.LISTS_OF_A_LAB
        assert ("var has_written_answers = true" in page) == (has_question and is_of_lab)
    assert 'class_report = ""' in page  # the last one is a list of a student's submissions
    report = graded.root / "grading/reports" / f"{LAB}.html"
    report.parent.mkdir()
    report.write_text("the report")
    os.utime(report, (1_800_000_000, 1_800_000_000))
    page = base.BaseHandler.render(handler, "manage_submissions.tpl", assignment_id=LAB)
    assert 'class_report = "15 January 2027, 08:00 UTC"' in page
    assert class_report.path_of(api.coursedir, LAB) == report
    assert class_report.path_of(api.coursedir, f"../reports/{LAB}") is None
    assert base.BaseHandler.render(handler, "manage_students.tpl") == "<head></head>"
    unknown = base.BaseHandler.render(handler, "manage_submissions.tpl", assignment_id="no_lab")
    assert "var has_written_answers = false" in unknown

    assert base.BaseHandler.gradebook.fget(handler) == "theirs"
    moved = Path(f"{graded.root}/grading/gradebook.db.moved")
    moved.write_text("postgresql+psycopg://host/new\n")
    refused = base.BaseHandler.render(handler, "manage_submissions.tpl", assignment_id=LAB)
    assert "export SHARDLAB_DB_URL=&#x27;postgresql+psycopg://host/new&#x27;" in refused
    with pytest.raises(HTTPError, match="was moved to postgresql"):
        base.BaseHandler.gradebook.fget(handler)
    with pytest.raises(GradebookError, match="was moved to postgresql"):
        ClassAPI(api.coursedir, config=api.config).get_students()
