"""What the report counts as a mistake."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autograder.course.tries import Tries
from autograder.evaluation.verdict import CaseResult, Verdict
from autograder.grading.record.record import GRADED, Record
from autograder.pages.report.mistakes import count_mistakes

CASE = CaseResult("4 ranks", False, 1.0, False, mistake="stopped with NotImplementedError")
VERDICT = Verdict("ring_all_reduce.all_gather", 4.0, (CASE,), seed=1)


@pytest.mark.parametrize(("unwritten", "counted"), [(True, 0), (False, 1)])
def test_a_stub_is_not_a_mistake(unwritten: bool, counted: int) -> None:
    verdict = replace(VERDICT, unwritten=unwritten).to_plain()
    record = Record("03_ring", "ann", "k", "h", GRADED, "", verdicts={"check_all_gather": verdict})
    assert len(count_mistakes([record], {})) == counted


def test_tries_of_a_mistake_count_only_students_whose_check_showed_it() -> None:
    record = Record(
        "03_ring", "ann", "k", "h", GRADED, "", verdicts={"check_all_gather": VERDICT.to_plain()}
    )
    tries = {
        student: {"all_gather": Tries(9, 9, {CASE.mistake: count} if count else {})}
        for student, count in (("ann", 4), ("ben", 1), ("cyd", 0))
    }
    tries["dee"] = {"ring": Tries(9, 9, {CASE.mistake: 9})}  # in another exercise
    (mistake,) = count_mistakes([record], tries)
    assert (mistake.students, mistake.tries) == (1, 2.5)
