from __future__ import annotations

from functools import partial
from typing import Any

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EqualAnswer
from autograder.exercises.lab09_activation_checkpointing.checkpoint_sequential import (
    budget_bytes,
    counted_step,
    kept_bytes,
)
from autograder.exercises.lab09_activation_checkpointing.networks import network_of, plainly
from autograder.exercises.lab09_activation_checkpointing.shared import (
    VALUES,
    blocks_case,
    results,
    x_bytes,
)

TIGHT = "13 layers, dropout, tight"
CASES = (
    blocks_case("16 layers, dropout", 1, 16, 64, 16, keep=0.8, budget=(5, 2)),
    blocks_case(TIGHT, 1, 13, 50, 16, keep=0.7, budget=(3, 1)),
    blocks_case("20 layers, much room", 1, 20, 40, 16, budget=(12, 0)),
)
BOUNDARIES = {
    "divides": "6 layers, room for all",
    "does not divide": TIGHT,
    "one rank": TIGHT,
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
    ran = counted_step(network_of(plainly, inputs[0], case), inputs[0], case)
    values = {name: results(ran, case)[name] for name in VALUES}
    right = {"refused": False, "computed again": sum(cut[:-1]), "within the budget": True}
    return right | values | {"bit for bit": True}


def by_the_root(case: Case, inputs: Any, rest_in_the_last: bool = False) -> Plain:
    """√n layers in each segment; ``rest_in_the_last``: of √n segments."""
    layers: int = case.params["blocks"]
    root = round(layers**0.5)
    before = root - 1 if rest_in_the_last else (layers - 1) // root
    return {"cut": [root] * before + [layers - before * root]}


MISTAKES = {
    "cuts into √n segments whatever the budget": (
        by_the_root,
        partial(by_the_root, rest_in_the_last=True),
    )
}
