import math
from collections.abc import Callable
from typing import Any

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab10_activation_checkpointing import checkpoint_sequential as public
from autograder.exercises.lab10_activation_checkpointing import shared
from autograder.exercises.lab10_activation_checkpointing.networks import plain_step

TIGHT = "13 layers, dropout, tight"
CASES = (
    shared.blocks_case("16 layers, dropout", 1, 16, 64, 16, keep=0.8, budget=(5, 2)),
    shared.blocks_case(TIGHT, 1, 13, 50, 16, keep=0.7, budget=(3, 1), samples=2),
    # So many that trying all cuts would never end.
    shared.blocks_case("34 layers, the last alone", 1, 34, 40, 16, budget=(4, 1), dtype="float64"),
)
BOUNDARIES = {
    "divides": "6 layers, room for 8",
    "does not divide": "10 layers, room for 4 and their inputs",
    "one rank": "6 layers, room for 8",
    "more ranks than elements": "not tested: there is one rank",
    "exactly the cap": "16 layers of float64, room for 3 and an input",
    "no cut fits": "9 layers, room for 8",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "for max_length in max_lengths[:-1]:\n        stop = min(start + max_length, last_start)\n",
        "for j in range(len(max_lengths) - 1):\n"
        "        stop = max(start, last_start - sum(max_lengths[j + 1 : -1]))\n",
        "segments before the last may be filled from the back",
    ),
    EquivalentAnswer(
        "max(0, len(layers) - max_lengths[-1])",
        "len(layers) - max_lengths[-1]",
        "it is negative only if there is one segment, and then it is not used",
    ),
    EquivalentAnswer(
        "max(0,", "max(1,", "it is at least 1, unless there is one segment: not used then"
    ),
    EquivalentAnswer(
        "in max_lengths[:-1]",
        "in max_lengths[:]",
        "one more segment without layers stores only the input of the last segment",
    ),
)


Cut = Callable[[Case], list[int] | None]


def max_lengths_of(case: Case, room: Callable[[int], int]) -> list[int] | None:
    """Of the smallest number of segments for all layers; None if nothing fits.

    ``room``: bytes for the layers of segment j.
    """
    max_lengths: list[int] = []
    while sum(max_lengths) < case.params["blocks"]:
        max_lengths.append(room(len(max_lengths)) // public.kept_bytes(case))
        if max_lengths[-1] < 1:
            return None
    return max_lengths


def last_first(case: Case, room: Callable[[int], int]) -> list[int] | None:
    """Layers of each segment, the last of which is as long as fits; None if no cut fits."""
    layers, max_lengths = case.params["blocks"], max_lengths_of(case, room)
    if max_lengths is None:
        return None
    cut, left = [], max(0, layers - max_lengths[-1])
    for max_length in max_lengths[:-1]:
        cut.append(min(max_length, left))
        left -= cut[-1]
    return [*cut, layers - sum(cut)]


def at_least_one(case: Case) -> list[int] | None:
    room = room_with(case, shared.x_bytes(case))
    return last_first(case, lambda j: max(room(j), public.kept_bytes(case)))


def from_the_front(case: Case) -> list[int] | None:
    max_lengths = max_lengths_of(case, room_with(case, shared.x_bytes(case)))
    return max_lengths and [*max_lengths[:-1], case.params["blocks"] - sum(max_lengths[:-1])]


def room_with(case: Case, input_bytes: int) -> Callable[[int], int]:
    return lambda j: public.budget_bytes(case) - j * input_bytes


def x_elements(case: Case) -> int:
    return math.prod(shared.shape_of(case))


def two_dims_bytes(case: Case) -> int:
    """Of x, by the first and the last of its dimensions."""
    shape = shared.shape_of(case)
    return shape[0] * shape[-1] * shared.dtype_of(case).itemsize


def right_cut(case: Case) -> list[int] | None:
    return last_first(case, room_with(case, shared.x_bytes(case)))


def outputs_of(cut_of: Cut) -> Callable[[Case, Any], Plain]:
    def outputs(case: Case, inputs: Any) -> Plain:
        """None where the cut is the right one: then outputs are wrong for another reason."""
        if (cut := cut_of(case)) == right_cut(case):
            return None
        if cut is None:
            return {"raises ValueError": True}
        return {"raises ValueError": False, "cut": cut, "recomputed layers": sum(cut[:-1])}

    return outputs


def equal_lengths(layers: int, length: int) -> list[int]:
    return [min(length, layers - start) for start in range(0, layers, length)]


def by_square_root(rounded: Callable[[float], int]) -> Cut:
    return lambda case: equal_lengths(case.params["blocks"], rounded(case.params["blocks"] ** 0.5))


def evenly(case: Case) -> list[int] | None:
    max_lengths = max_lengths_of(case, room_with(case, shared.x_bytes(case)))
    layers = case.params["blocks"]
    return max_lengths and equal_lengths(layers, math.ceil(layers / len(max_lengths)))


def with_inputs(input_bytes: Callable[[Case], int]) -> Callable[..., Plain]:
    """The right cut for stored inputs of another size."""
    return outputs_of(lambda case: last_first(case, room_with(case, input_bytes(case))))


MISTAKES = {
    "computes the last segment twice, too: backward starts with it, so it can keep its "
    "activations": lambda case, inputs: {shared.RUNS: [2] * case.params["blocks"]},
    # Before mistakes in the count of stored inputs, some of which lead to this cut too.
    "gives a segment a layer for which it has no room: raise ValueError": outputs_of(at_least_one),
    "fills the segments from the front: the last segment is computed once, so fill it first": (
        outputs_of(from_the_front)
    ),
    # Several counts lead to the same cuts: what is said is true of each.
    "counts too few bytes for the stored inputs: while a segment runs, memory also holds those of "
    "all segments before it, x.numel() * x.element_size() bytes each": (
        with_inputs(lambda case: 0),
        with_inputs(x_elements),
        with_inputs(lambda case: 4 * x_elements(case)),
        with_inputs(lambda case: case.params["width"] * shared.dtype_of(case).itemsize),
        with_inputs(two_dims_bytes),
        with_inputs(lambda case: shared.x_bytes(case) // shared.shape_of(case)[0]),
    ),
    # Last, because for some numbers of layers these equal cuts by other mistakes.
    "cuts into segments of equal length: the last one is computed once, so make it as long as "
    "fits": (
        outputs_of(evenly),
        *(outputs_of(by_square_root(rounded)) for rounded in (round, math.floor, math.ceil)),
    ),
}


def reference(case: Case, inputs: Any) -> Plain:
    cut = right_cut(case)
    if cut is None:
        return {"raises ValueError": True}
    ran = shared.results(plain_step(inputs[0], case, **public.STEP_OPTIONS), case)
    return {
        "raises ValueError": False,
        "fits the budget": "yes",
        "recomputed layers": sum(cut[:-1]),
        **{name: ran[name] for name in shared.VALUES},
        shared.BITS: True,
    }
