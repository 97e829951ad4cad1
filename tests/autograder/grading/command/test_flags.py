"""Instructors see what looks suspicious in a student's source, but not in the lab's own code."""

from __future__ import annotations

import copy
from pathlib import Path

import nbformat

from autograder.build.cells import Check
from autograder.grading.record.grade_submission import _flags

LABS = sorted((Path(__file__).parents[4] / "labs").glob("*/*.ipynb"))
CHECK = [Check("one_device.DynamicLossScaler", "DynamicLossScaler")]


def test_a_suspicious_answer_is_flagged_and_an_untouched_lab_is_not() -> None:
    template = nbformat.read(next(p for p in LABS if p.stem == "01_one_device"), as_version=4)
    assert list(_flags(template, template, CHECK)) == []
    suspicious = copy.deepcopy(template)
    next(
        c for c in suspicious.cells if c.id == "DynamicLossScaler"
    ).source = "class DynamicLossScaler:\n    def step(self, o):\n        dist.broadcast(o, 0)\n"
    assert any("broadcast" in flag for flag in _flags(suspicious, template, CHECK))
