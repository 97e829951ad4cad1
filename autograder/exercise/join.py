"""Joins the two halves of an exercise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from autograder.exercise.form import Exercise, Half
from autograder.exercise.hidden import HiddenHalf
from autograder.exercise.recorded import SUFFIX, RecordedHalf


def joined(
    public: Exercise, other: Any, chapter: str, module: str, closed: tuple[str, ...]
) -> Exercise:
    """``other``: the hidden half's module, or where its record lies."""
    half: Half = HiddenHalf(other)
    if isinstance(other, Path):
        half = RecordedHalf(other.with_suffix(SUFFIX))
    answer = public.answer or module
    cases = [replace(case, params={**case.params, **half.facts(case)}) for case in public.cases]
    cases += [replace(case, params={**case.params, **half.facts(case)}) for case in half.cases]
    return replace(
        public,
        answer=answer,
        name=f"{chapter}.{answer}",
        closed=closed,
        half=half,
        cases=tuple(cases),
    )
