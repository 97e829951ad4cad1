"""References are cached for a case's inputs, and inputs for a seed; others are computed again."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from autograder.exercise import Case, OnRanks, reference_cache
from autograder.exercise.hidden import HiddenHalf
from autograder.exercise.reference_cache import with_cached_references

CASE, OTHER = Case("a case", 2), Case("another", 2)


@pytest.fixture
def computed() -> list[str]:
    return []


@pytest.fixture
def half(computed: list[str]) -> Any:
    def reference(case: Case, inputs: Any, times: int = 1, name: str = "right") -> Any:
        computed.append(f"{name} {case.name} {inputs[0]['x'][0]:g}")
        return [times * given["x"] for given in inputs]

    hidden = HiddenHalf(
        SimpleNamespace(
            reference=reference,
            MISTAKES={
                "doubles": lambda *given: reference(*given, times=2, name="doubles"),
                "needs two ranks": lambda case, inputs: computed.append("none"),
            },
        )
    )
    exercise = OnRanks(points=1, cases=(CASE,), inputs=lambda *_: [], drive=lambda *_: None)
    return with_cached_references(
        exercise.with_hidden_half(hidden, "toy", "answer", ())
    ).required_half


def drawn(first: float, size: int = 3) -> list[dict[str, Any]]:
    tensor = torch.full((size,), first)
    kinds = {"view": tensor[1:], "bf16": tensor.bfloat16()}
    return [{"x": np.full(size, first)} | kinds for _ in range(2)]


def test_equal_inputs_are_computed_once(half: Any, computed: list[str]) -> None:
    for _ in range(2):
        assert half.expected(CASE, drawn(5))[1][0] == 5
        assert [(m, out[0][0]) for m, out in half.mistakes(CASE, drawn(5))] == [("doubles", 10)]
    assert computed == ["right a case 5", "doubles a case 5", "none"]
    assert list(half.mistakes(CASE, drawn(5), {"needs two ranks"})) == []
    assert len(computed) == 3


def test_other_inputs_and_cases_are_computed_again(half: Any, computed: list[str]) -> None:
    for case, first in ((CASE, 5), (OTHER, 5), (CASE, 6), (CASE, 5)):
        assert half.expected(case, drawn(first))[0][0] == first
    assert computed == ["right a case 5", "right another 5", "right a case 6", "right a case 5"]


def test_outputs_that_are_too_large_are_not_cached(
    half: Any, computed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference_cache, "MAX_BYTES", 10_000)
    for _ in range(2):
        half.expected(CASE, drawn(5, size=200))
        list(half.mistakes(CASE, drawn(5, size=200), {"doubles"}))
    # Each takes 2 x 1,600 bytes and their containers: both of this case fit.
    assert computed == ["right a case 5", "doubles a case 5"]
    for _ in range(2):
        half.expected(OTHER, drawn(5, size=2000))
    assert computed[2:] == ["right another 5"] * 2


def test_inputs_are_drawn_once_for_each_case_and_seed() -> None:
    drawn_for: list[str] = []

    def inputs(case: Case, rng: np.random.Generator) -> float:
        drawn_for.append(case.name)
        return rng.random()

    exercise = OnRanks(points=1, cases=(CASE, OTHER), inputs=inputs, drive=lambda *_: None)
    hidden = HiddenHalf(SimpleNamespace())
    cached = with_cached_references(exercise.with_hidden_half(hidden, "toy", "answer", ()))
    for case, seed in ((CASE, 1), (CASE, 1), (OTHER, 1), (CASE, 2), (CASE, 1)):
        rng = np.random.default_rng(seed)
        assert cached.draw(case, rng) == [np.random.default_rng(seed).random()] * 2
    assert drawn_for == ["a case", "another", "a case", "a case"]
