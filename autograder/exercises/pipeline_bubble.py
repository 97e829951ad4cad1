"""Lab 08's arithmetic: the share of a step in which a device of a pipeline has nothing to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from autograder.exercise import Attempt, Case, Exercise, Finding, Plain
from autograder.exercise.compare import equal
from autograder.exercise.kept_back import kept_back, never
from autograder.guest.library import answers_of, borrowed


def draw_pipelines(case: Case, rng: np.random.Generator) -> list[Plain]:
    """[devices, micro_batches, chunks]: those the case names, or `draws` of them."""
    if "pipelines" in case.params:
        return [case.params["pipelines"]]
    return [random_pipelines(case, rng)]


@kept_back(never)
def random_pipelines(case: Case, rng: np.random.Generator) -> Plain:
    most = case.params["chunks"]
    pipelines = []
    for _ in range(case.params["draws"]):
        devices, rounds = int(rng.integers(3, 33)), int(rng.integers(1, 9))
        chunks = int(rng.integers(2, most + 1)) if most > 1 else 1
        pipelines.append([devices, devices * rounds, chunks])
    return pipelines


def drive_bubble_fraction(subject: Callable[..., Any], pipelines: Any, case: Case) -> Plain:
    # As a student would call it: chunks are named only where there are several.
    return answers_of(subject, [[p, m, v] if v > 1 else [p, m] for p, m, v in pipelines])


def expect_bubble_fraction(case: Case, inputs: Any) -> list[Plain]:
    return [[(p - 1) / (v * m + p - 1) for p, m, v in inputs[0]]]


def wrong_fraction(attempt: Attempt) -> Finding | None:
    if attempt.error or not isinstance(attempt.outputs[0], list):
        return None
    for sizes, wanted, got in zip(
        attempt.inputs[0], attempt.expected[0], attempt.outputs[0], strict=True
    ):
        p, m, v = sizes
        mistake = None if equal(wanted, got, 1e-9) else name_wrong_fraction(p, m, v, wanted, got)
        if mistake:
            evidence = f"it is {got:.4f}, expected {wanted:.4f}"
            call = f"bubble_fraction({', '.join(map(str, sizes))})"
            return Finding(call, mistake, evidence, anyone="bubble_fraction")
    return None


def name_wrong_fraction(p: int, m: int, v: int, wanted: float, got: Any) -> str | None:
    """Each mistake as what it makes of the right answer."""
    for wrong, mistake in (
        (
            wanted / (1 - wanted),
            "counts against the ideal time: the whole step is the ideal time and the bubble",
        ),
        ((p - 1) / m, "counts against the ideal time, and forgets the chunks"),
        (
            (p - 1) / (m + p - 1),
            "forgets the chunks: a pipeline of v chunks fills and drains v times as fast",
        ),
        (
            (p - 1) / (m + p - 1) / v,
            "divides the whole fraction by v: the bubble shrinks, and so does the step",
        ),
        (p / (v * m + p), "counts p slots of filling: the last device waits for p - 1 others"),
        (p / (v * m + p - 1), "counts p slots of filling: the last device waits for p - 1 others"),
        ((p - 1) / (v * m + p), "takes a step for m + p slots: it is m + p - 1"),
        (1 - wanted, "returns the busy share: the bubble is the rest"),
        (100 * wanted, "answers in percent: a fraction is between 0 and 1"),
        ((p - 1) / p, "is that of naive model parallelism: micro-batches shrink it"),
        ((p - 1) * v / (m + (p - 1) * v), "multiplies the bubble by v: chunks make it shorter"),
    ):
        if equal(wrong, got, 1e-9):
            return mistake
    return None


BUBBLE_FRACTION = Exercise(
    name="pipeline.bubble_fraction",
    points=2,
    cases=(
        Case("4 devices, 8 micro-batches", 1, {"pipelines": [[4, 8, 1]]}),
        Case("8 devices, 4 chunks, 16 micro-batches", 1, {"pipelines": [[8, 16, 4]]}),
        Case("drawn sizes", 1, {"draws": 20, "chunks": 1}, hidden=True),
        Case("drawn sizes and chunks", 1, {"draws": 20, "chunks": 6}, hidden=True),
    ),
    draw=draw_pipelines,
    drive=drive_bubble_fraction,
    expect=expect_bubble_fraction,
    tolerance=1e-9,
    allows=frozenset(),
    diagnoses=(borrowed, wrong_fraction),
)
