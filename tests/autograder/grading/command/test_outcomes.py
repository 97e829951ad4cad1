"""The table that `python -m autograder grade` ends with."""

from __future__ import annotations

from autograder.grading.command.outcomes import Outcome, table
from autograder.grading.record.record import GRADED, STUDENT_ERROR, TAMPERING, Record, State


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
