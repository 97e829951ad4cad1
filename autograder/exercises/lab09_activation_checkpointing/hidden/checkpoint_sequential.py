from typing import Any

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EqualAnswer
from autograder.exercises.lab09_activation_checkpointing import checkpoint_sequential as public
from autograder.exercises.lab09_activation_checkpointing import shared
from autograder.exercises.lab09_activation_checkpointing.hidden.shared import OFF_BY_BITS
from autograder.exercises.lab09_activation_checkpointing.networks import plain_step

MISTAKES = OFF_BY_BITS
TIGHT = "13 layers, dropout, tight"
CASES = (
    shared.blocks_case("16 layers, dropout", 1, 16, 64, 16, keep=0.8, budget=(5, 2)),
    shared.blocks_case(TIGHT, 1, 13, 50, 16, keep=0.7, budget=(3, 1), samples=2),
    shared.blocks_case("17 layers, the last alone", 1, 17, 40, 16, budget=(3, 1), double=True),
)
BOUNDARIES = {
    "divides": "6 layers, room for 8",
    "does not divide": TIGHT,
    "one rank": TIGHT,
    "more ranks than elements": "not tested: there is one rank",
    "exactly the cap": "16 layers of float64, room for 3 and an input",
    "no cut fits": "4 layers, room for 3",
}
EQUAL_ANSWERS = (
    EqualAnswer(
        "for max_length in max_lengths[:-1]:\n        stop = min(start + max_length, last_start)\n",
        "for j in range(len(max_lengths) - 1):\n"
        "        stop = max(start, last_start - sum(max_lengths[j + 1 : -1]))\n",
        "segments before the last may be filled from the back",
    ),
    EqualAnswer(
        "max(0, len(layers) - max_lengths[-1])",
        "len(layers) - max_lengths[-1]",
        "it is negative only if there is one segment, and then it is not used",
    ),
    EqualAnswer("max(0,", "max(1,", "it is at least 1, unless there is one segment: not used then"),
    EqualAnswer(
        "in max_lengths[:-1]",
        "in max_lengths[:]",
        "one more segment without layers stores only the input of the last segment",
    ),
)


def right_cut(case: Case) -> list[int] | None:
    """Layers of each segment, the last of which is computed once; None if nothing fits."""
    layers, input_bytes = case.params["blocks"], shared.x_bytes(case)
    max_lengths: list[int] = []
    while sum(max_lengths) < layers:
        room_bytes = public.budget_bytes(case) - len(max_lengths) * input_bytes
        max_lengths.append(room_bytes // public.kept_bytes(case))
        if max_lengths[-1] < 1:
            return None
    cut, left = [], max(0, layers - max_lengths[-1])
    for max_length in max_lengths[:-1]:
        cut.append(min(max_length, left))
        left -= cut[-1]
    return [*cut, layers - sum(cut)]


def reference(case: Case, inputs: Any) -> Plain:
    cut = right_cut(case)
    if cut is None:
        return {"refused": True}
    ran = shared.results(plain_step(inputs[0], case, **public.STEP_OPTIONS), case)
    values = {name: ran[name] for name in shared.VALUES}
    right = {"refused": False, "computed again": sum(cut[:-1]), "within the budget": True}
    return right | values | {"bit for bit": True}
