"""nbgrader reads from a check cell the points that were written into it."""

from __future__ import annotations

from pathlib import Path

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_output
from nbgrader.utils import determine_grade

from autograder.build.cells import Check
from autograder.evaluation.verdict import CaseResult, Verdict
from autograder.grading.course_error import CourseError
from autograder.grading.pool.tasks import grading_seed
from autograder.grading.record.grade_submission import exercise_of, state_of
from autograder.grading.record.marks import why_missing, write_verdict
from autograder.grading.record.record import GRADED, RESOURCE_LIMIT, STUDENT_ERROR, TAMPERING
from autograder.sandbox import Limits

MISTAKE = ("doubles <nothing>", "doubles <nothing>")


def check_cell(points: float = 4) -> NotebookNode:
    marks = {"grade_id": "test", "grade": True, "solution": False, "points": points}
    return new_code_cell('check("lab.double", double)', metadata={"nbgrader": marks})


def verdict(*weights_passed: tuple[float, bool]) -> Verdict:
    cases = [
        CaseResult(f"case {i}", False, weight, passed, *([] if passed else MISTAKE))
        for i, (weight, passed) in enumerate(weights_passed)
    ]
    return Verdict("lab.double", 4.0, tuple(cases), seed=1)


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("decided", "points"),
    [
        (verdict((1, True), (1, True)), 4.0),
        (verdict((1, True), (3, False)), 1.0),
        (verdict((1, False)), 0.0),
        (verdict(), 0.0),
        (verdict((NAN, True)), 0.0),
        (verdict((INF, True), (1, False)), 0.0),
        (verdict((-1, True), (-1, False)), 0.0),
    ],
)
def test_nbgrader_reads_the_points_that_were_decided(decided: Verdict, points: float) -> None:
    cell = check_cell()
    cell.outputs = [
        new_output("execute_result", data={"text/plain": "4.0"}),
        new_output("stream", name="stderr", text="a warning"),
    ]
    write_verdict(cell, decided)
    assert determine_grade(cell) == (points, 4.0)


def test_an_exercise_worth_more_than_its_cell_is_scaled() -> None:
    cell = check_cell(points=2)
    write_verdict(cell, verdict((1, True), (1, False)))
    assert determine_grade(cell) == (1.0, 2.0)


def test_the_table_names_the_mistake_and_escapes_it() -> None:
    cell = check_cell()
    write_verdict(cell, verdict((1, True), (1, False)))
    html = cell.outputs[0].data["text/html"]
    assert "doubles &lt;nothing&gt;" in html


def test_a_missing_answer_is_explained() -> None:
    answer = new_code_cell(metadata={"nbgrader": {"grade_id": "double", "solution": True}})
    cells = [answer, check_cell()]
    check = Check("lab.double", "double")
    assert why_missing(check, cells, 1).startswith("`double` never reached the check: nothing")
    cells[1].outputs = [new_output("error", ename="NameError", evalue="no double")]
    assert "this cell failed with NameError: no double." in why_missing(check, cells, 1)
    cells[0].outputs = [new_output("error", ename="ZeroDivisionError", evalue="division by zero.")]
    assert why_missing(check, cells, 1) == (
        "`double` never reached the check: the cell `double` above failed with "
        "ZeroDivisionError: division by zero."
    )


def test_the_seed_is_kept_and_differs_by_lab_and_course(tmp_path: Path) -> None:
    first = grading_seed(tmp_path / "grading", "03_ring")
    assert grading_seed(tmp_path / "grading", "03_ring") == first
    assert grading_seed(tmp_path / "grading", "04_zero") != first
    assert grading_seed(tmp_path / "other", "03_ring") != first
    assert (tmp_path / "grading/seed").stat().st_mode & 0o077 == 0


def test_an_unknown_exercise_is_an_error_in_the_course() -> None:
    with pytest.raises(CourseError, match="there is no exercise"):
        exercise_of(Check("ring_all_reduce.sort", "sort"), Limits())


# ---- states


def with_violation(violation: str) -> Verdict:
    case = CaseResult("two ranks", False, 1, False, "hangs", "it hangs", violation=violation)
    return Verdict("lab.double", 4.0, (case,), seed=1)


@pytest.mark.parametrize(
    ("verdicts", "reasons", "expected"),
    [
        ([verdict((1, False))], {}, (GRADED, "")),
        ([with_violation("resource limit")], {}, (RESOURCE_LIMIT, "double, two ranks: it hangs")),
        (
            [with_violation("resource limit"), with_violation("tampering")],
            {"limits_hit": ["A cell was stopped after 60 s."], "missing": ["No answer."]},
            (TAMPERING, "double, two ranks: it hangs"),
        ),
        (
            [verdict((1, True))],
            {"limits_hit": ["A cell was stopped after 60 s."], "missing": ["No answer."]},
            (RESOURCE_LIMIT, "A cell was stopped after 60 s."),
        ),
        ([verdict((1, False))], {"missing": ["No answer."]}, (STUDENT_ERROR, "No answer.")),
        ([], {"tampering": ["A forged message."]}, (TAMPERING, "A forged message.")),
    ],
)
def test_a_submission_ends_in_the_first_state_that_applies(
    verdicts: list[Verdict], reasons: dict[str, list[str]], expected: tuple[str, str]
) -> None:
    sentences = {"tampering": [], "limits_hit": [], "missing": [], **reasons}
    assert state_of(verdicts, **sentences) == expected
