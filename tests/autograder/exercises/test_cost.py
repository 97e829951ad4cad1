"""How many lines an exercise costs, as CONTRIBUTING states it: each new lab pays for it again."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable
from pathlib import Path

import pytest

from autograder import exercises
from autograder.exercise import Formula

ROOT = Path(__file__).parents[3]
HALVES = ROOT / "autograder/exercises"


def lines(paths: Iterable[Path]) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def test_contributing_states_what_an_exercise_costs() -> None:
    formulas, on_ranks = [], []  # both halves, without what a lab's exercises share
    for lab in exercises.labs():
        names = exercises.lab_module(lab).EXERCISES
        for name, exercise in zip(names, exercises.of_lab(lab), strict=True):
            own = HALVES.glob(f"lab{lab}/**/{name}.py")
            (formulas if isinstance(exercise, Formula) else on_ranks).append(lines(own))
    count = len(formulas) + len(on_ranks)
    costs = [
        statistics.median(formulas),
        statistics.median(on_ranks),
        lines(HALVES.glob("lab*/**/*.py")) / count,
        lines((ROOT / "tests/submissions").glob("[0-9]*/*.*")) / count,
        lines((ROOT / "tests/autograder/exercises").glob("test_lab*.py")) / count,
    ]
    text = " ".join((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split())
    (sentence,) = re.findall(r"What an exercise costs today, in lines: (.*?)\.", text)
    stated = [int(number) for number in re.findall(r"\d+", sentence)]
    assert stated == pytest.approx(costs, rel=0.05)
