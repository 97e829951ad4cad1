from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EqualAnswer
from autograder.exercises.lab09_activation_checkpointing.checkpoint_sequential import (
    budget_bytes,
    kept_bytes,
    layers_case,
    one_after_the_other,
    sequential_step,
)
from autograder.exercises.lab09_activation_checkpointing.shared import sampled, x_bytes

CASES = (
    layers_case("16 layers, dropout", 16, (5, 2), keep=0.8),
    layers_case("13 layers, dropout, tight", 13, (3, 1), keep=0.7, rows=50),
    layers_case("20 layers, much room", 20, (12, 0), rows=40),
)
BOUNDARIES = {
    "divides": "8 layers, room for 3 and nothing more",
    "does not divide": "13 layers, dropout, tight",
    "one rank": "6 layers, room for all",
    "more ranks than elements": "not asked: there is one rank",
    "exactly the cap": "8 layers, room for 3 and nothing more",
    "no cut fits": "4 layers, room for none",
}
EQUAL_ANSWERS = (
    EqualAnswer(
        "stop = min(start + room, begin_of_last)",
        "stop = max(start, min(start + room, begin_of_last))",
        "segments that are left empty compute nothing twice",
    ),
)


def right_cut(case: Case) -> list[int] | None:
    """Layers of each segment, the last of which is computed once; None: nothing fits."""
    layers: int = case.params["blocks"]
    room: list[int] = []
    while sum(room) < layers:
        fits = (budget_bytes(case) - len(room) * x_bytes(case)) // kept_bytes(case)
        if fits < 1:
            return None
        room.append(fits)
    cut, left = [], max(0, layers - room[-1])
    for fits in room[:-1]:
        cut.append(min(fits, left))
        left -= cut[-1]
    return [*cut, layers - sum(cut)]


def reference(case: Case, inputs: Any) -> Plain:
    cut = right_cut(case)
    if cut is None:
        return {"refused": True}
    right = {"refused": False, "computed again": sum(cut[:-1]), "within the budget": True}
    ran = sequential_step(one_after_the_other, inputs[0], case)
    return right | sampled(ran) | {"bit for bit": True}


def by_the_root(segments: Callable[[int, int], int]) -> Callable[[Case, Any], Plain]:
    """√n layers in each segment but the last; ``segments(n, √n)``: how many these are."""

    def outputs(case: Case, inputs: Any) -> Plain:
        layers: int = case.params["blocks"]
        root = round(layers**0.5)
        before = segments(layers, root)
        return {"cut": [root] * before + [layers - before * root]}

    return outputs


MISTAKES = {
    "cuts into √n segments whatever the budget": (
        by_the_root(lambda layers, root: (layers - 1) // root),
        by_the_root(lambda layers, root: root - 1),
    ),
}
