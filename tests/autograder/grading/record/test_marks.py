"""nbgrader reads from a check cell the points that were written into it."""

from __future__ import annotations

import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_output
from nbgrader.utils import determine_grade

from autograder.build.cells import Check
from autograder.evaluation.verdict import CaseResult, Verdict
from autograder.grading.record.marks import why_missing, write_verdict

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
