"""The table that `python -m autograder grade` ends with."""

from __future__ import annotations

from autograder.grading.command.outcomes import Outcome, table
from autograder.grading.record.record import (
    GRADED,
    STUDENT_ERROR,
    TAMPERING,
    UNREADABLE,
    Record,
    State,
)


def test_students_are_named_in_every_state_but_graded() -> None:
    found = Outcome("03_ring")
    states: dict[str, State] = {f"s{number:02}": STUDENT_ERROR for number in range(13)}
    for student, state in {**states, "eve": TAMPERING, "ann": GRADED}.items():
        found.records[student] = Record("03_ring", student, "k", "h", state, "")
    lines = table(found).splitlines()
    assert "  graded                    1" in lines
    shown = ", ".join(f"s{number:02}" for number in range(10))
    assert f"  student error            13  {shown} and 3 more" in lines
    assert "  tampering                 1  eve" in lines
    assert "  resource limit            0" in lines


def test_the_reason_why_a_file_was_not_read_is_shown() -> None:
    found = Outcome("03_ring")
    why = "You submitted `lab.rar`, which is no notebook: expected `03_ring.ipynb`."
    found.records["ann"] = Record("03_ring", "ann", "k", "h", UNREADABLE, why)
    lines = table(found).splitlines()
    assert "  unreadable file           1  ann" in lines
    at = lines.index("0 points, because there is no notebook that can be read:")
    assert lines[at + 1] == f"  ann: {why}"


def test_new_grades_and_declined_regrades_are_both_counted() -> None:
    found = Outcome("03_ring", took_s=6.0)
    for student in ("ann", "bob", "cid"):
        timing = {"ran_s": 1.0}
        found.records[student] = Record(
            "03_ring", student, "k", "h", GRADED, "", timing=timing
        )  # fmt: skip
    found.new, found.declined = {"ann", "bob", "cid"}, {"bob", "cid"}
    printed = table(found)
    heading = "3 submissions, 1 graded now in 0:00:06 (2.0 s each), 2 regraded, but not written"
    assert printed.startswith(f"03_ring: {heading}\n")
    assert "ann: 1.0 s" in printed
    assert "bob: 1.0 s" not in printed  # graded in an earlier run
