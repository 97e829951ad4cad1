"""The state in which a submission ends, and what looks suspicious in it."""

from __future__ import annotations

import copy
from pathlib import Path

import nbformat
import pytest

from autograder import exercises
from autograder.build.cells import Check, checks_of
from autograder.evaluation.verdict import CaseResult, Verdict
from autograder.grading.course_error import CourseError
from autograder.grading.record.grade_submission import _flags, exercise_of, state_of
from autograder.grading.record.record import GRADED, RESOURCE_LIMIT, STUDENT_ERROR, TAMPERING
from autograder.sandbox import Limits

COURSE = Path(__file__).parents[4]
LAB = COURSE / "labs/01_one_device/01_one_device.ipynb"


def test_an_unknown_exercise_is_an_error_in_the_course() -> None:
    with pytest.raises(CourseError, match="there is no exercise"):
        exercise_of(Check("ring_all_reduce.sort", "sort"), Limits())


def with_violation(violation: str) -> Verdict:
    case = CaseResult("two ranks", False, 1, False, "hangs", "it hangs", violation=violation)
    return Verdict("lab.double", 4.0, (case,), seed=1)


@pytest.mark.parametrize(
    ("verdicts", "reasons", "expected"),
    [
        ([with_violation("")], {}, (GRADED, "")),
        ([with_violation("resource limit")], {}, (RESOURCE_LIMIT, "double, two ranks: it hangs")),
        (
            [with_violation("resource limit"), with_violation("tampering")],
            {"limits_hit": ["A cell was stopped after 60 s."], "missing": ["No answer."]},
            (TAMPERING, "double, two ranks: it hangs"),
        ),
        (
            [Verdict("lab.double", 4.0, (CaseResult("two ranks", False, 1, True),), seed=1)],
            {"limits_hit": ["A cell was stopped after 60 s."], "missing": ["No answer."]},
            (RESOURCE_LIMIT, "A cell was stopped after 60 s."),
        ),
        ([with_violation("")], {"missing": ["No answer."]}, (STUDENT_ERROR, "No answer.")),
        ([], {"tampering": ["A forged message."]}, (TAMPERING, "A forged message.")),
    ],
)
def test_a_submission_ends_in_the_first_state_that_applies(
    verdicts: list[Verdict], reasons: dict[str, list[str]], expected: tuple[str, str]
) -> None:
    sentences = {"tampering": [], "limits_hit": [], "missing": [], **reasons}
    assert state_of(verdicts, **sentences) == expected


def test_a_suspicious_answer_is_flagged_and_an_untouched_lab_is_not() -> None:
    """Instructors see it."""
    template = nbformat.read(LAB, as_version=4)
    check = [Check("one_device.DynamicLossScaler", "DynamicLossScaler")]
    assert list(_flags(template, template, check)) == []
    suspicious = copy.deepcopy(template)
    next(
        c for c in suspicious.cells if c.id == "DynamicLossScaler"
    ).source = "class DynamicLossScaler:\n    def step(self, o):\n        dist.broadcast(o, 0)\n"
    assert any("broadcast" in flag for flag in _flags(suspicious, template, check))


@pytest.mark.parametrize("lab", exercises.labs())
def test_the_courses_own_solution_is_not_flagged(lab: str) -> None:
    template, solved = (
        nbformat.read(COURSE / folder / lab / f"{lab}.ipynb", as_version=4)
        for folder in ("labs", "solutions")
    )
    assert list(_flags(solved, template, checks_of(template).values())) == []


def test_a_finding_is_reported_once_for_each_answer() -> None:
    template = nbformat.read(LAB, as_version=4)
    cheating = copy.deepcopy(template)
    next(c for c in cheating.cells if c.id == "DynamicLossScaler").source = (
        "import os\nclass DynamicLossScaler:\n    def step(self, o):\n"
        + ("        os.posix_fadvise(3, 0, 0, 4)\n" * 3)
    )
    check = [Check("one_device.DynamicLossScaler", "DynamicLossScaler")]
    (flag,) = _flags(cheating, template, check)
    assert "os.posix_fadvise" in flag
