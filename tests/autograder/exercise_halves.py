"""Both halves of an exercise in one call, for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from autograder.exercise import Case, Exercise, OnRanks
from autograder.exercise.hidden import HiddenHalf


def on_ranks(
    name: str,
    cases: Sequence[Case],
    inputs: Callable[..., Any],
    drive: Callable[..., Any],
    reference: Callable[..., Any],
    mistakes: dict[str, Any] | None = None,
    points: float = 1,
    **more: Any,
) -> Exercise:
    """``cases`` marked as hidden go to the hidden half."""
    chapter, _, answer = name.partition(".")
    visible = tuple(case for case in cases if not case.hidden)
    public = OnRanks(
        answer=answer, points=points, cases=visible, inputs=inputs, drive=drive, **more
    )
    hidden = SimpleNamespace(
        CASES=[case for case in cases if case.hidden],
        reference=reference,
        MISTAKES=mistakes or {},
    )
    return public.with_hidden_half(HiddenHalf(hidden), chapter, answer, ())
