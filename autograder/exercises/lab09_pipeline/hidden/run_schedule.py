from collections.abc import Callable
from typing import Any

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab09_pipeline.hidden import shared
from autograder.exercises.lab09_pipeline.run_schedule import NEXT_CALL, run_case


def plan_of(*devices: str) -> list[list[list[Any]]]:
    return [[[a[0], int(a[1]), int(a[2:])] for a in actions.split()] for actions in devices]


# Rank 0 sends a gradient to stage 1, then an activation; rank 1 receives the activation first.
# A stage's position on its rank is not its number divided by the number of ranks.
UNEVEN = plan_of(
    "F01 F21 F41 B41 B21 F00 F20 F40 B40 B20 B01 B00",
    "F11 F10 B11 B10",
    "F31 B31 F30 B30",
)


def of_all(*stages: str, micro_batches: range) -> str:
    """One after another: ("F0", "F2") and 1, 0  ->  F01 F00 F21 F20"""
    return " ".join(f"{stage}{k}" for stage in stages for k in micro_batches)


# Messages overtake each other: their order mixes up tags such as s + k, which are not unique.
# In the end the first of eight open sends is received last.
LAST = range(6, 14)
OVERTAKING = plan_of(
    "F00 F01 F02 F20 F21 F22 B20 B21 B22 B00 B01 B02 "
    "F03 F04 F05 F25 B25 F23 F24 B23 B24 B05 B03 B04 "
    + of_all("F0", micro_batches=LAST)
    + " "
    + of_all("F2", "B2", "B0", micro_batches=LAST[::-1]),
    "F10 F11 F30 F12 F31 F32 B30 B31 B32 B10 B11 B12 "
    "F15 F35 B35 B15 F13 F14 F33 F34 B33 B34 B13 B14 "
    + of_all("F1", "F3", "B3", "B1", micro_batches=LAST[::-1]),
)
CASES = (
    run_case("2 ranks of 2 chunks, messages that overtake each other", OVERTAKING),
    with_random_delays(run_case("3 ranks of 3, 1 and 1 stages", UNEVEN, shape=[2, 3, 4])),
)
BOUNDARIES = {
    "divides": "2 ranks of 2 chunks, 4 micro-batches",
    "does not divide": "1F1B, 4 ranks, 5 micro-batches",
    "one rank": "1 rank, 3 micro-batches, two steps",
    "more ranks than elements": "not tested: the schedule lists every action",
}
# The messages of one micro-batch follow each other: only those of different ones can be confused,
# and `most` is larger than every k.
TAG = '(2 * s + (kind == "F")) * most + k'
TAGS_BY_MICRO_BATCH = (
    "k",
    "most + k",
    "2 * s * most + k",
    '(kind == "F") * most + k',
    '(2 + (kind == "F")) * most + k',
    '(s + (kind == "F")) * most + k',
    '(3 * s + (kind == "F")) * most + k',
    '(2 * s - (kind == "F")) * most + k',
    '(2 * s + (kind != "F")) * most + k',
)
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(TAG, '(2 * k + (kind == "F")) * 1000 + s', "any number unique to the message"),
    *(EquivalentAnswer(TAG, tag, "differs by micro-batch") for tag in TAGS_BY_MICRO_BATCH),
    EquivalentAnswer(
        "return sum(losses) if losses else None",
        "return sum(losses)",
        "ranks without the last stage may return anything",
    ),
    EquivalentAnswer(
        "y = F.mse_loss(y, targets[k]) / len(targets)",
        "y = F.mse_loss(y, targets[k]) / len({m for _, _, m in schedule[0]})",
        "the schedule says how many micro-batches there are",
    ),
)


def reference(case: Case, inputs: Any) -> list[Plain]:
    outputs = zip(case.params["plan"], shared.reference(case, inputs), strict=True)
    found = [{"executed": plan, **each} for plan, each in outputs]
    if case.params["more_steps"]:
        of_smaller = shared.reference(case, [first_micro_batch(given) for given in inputs])
        for output, smaller in zip(found, of_smaller, strict=True):
            output[NEXT_CALL] = smaller
    return found


def first_micro_batch(given: Any) -> Any:
    ends = {end: given[end] for end in ("inputs", "targets")}
    return given | {name: None if end is None else end[:1] for name, end in ends.items()}


def losses_scaled(by: Callable[[Case], float]) -> Callable[..., list[Plain]]:
    """Each micro-batch's loss, and so its gradients, multiplied by a function of the case."""
    return lambda case, inputs: shared.gradients(case, inputs, times=lambda stage, k: by(case))


def only_the_last(case: Case, inputs: Any) -> list[Plain]:
    """Each stage's gradients are those of the micro-batch whose backward came last."""
    last = {stage: k for plan in case.params["plan"] for kind, stage, k in plan if kind == "B"}
    return shared.gradients(case, inputs, times=lambda stage, k: k == last[stage])


MISTAKES = {
    "scales the losses wrongly: divide each by the number of micro-batches": (
        losses_scaled(lambda case: case.params["micro_batches"]),
        losses_scaled(lambda case: case.params["micro_batches"] / case.world_size),
    ),
    "keeps only the last micro-batch's gradients: add them up in .grad": only_the_last,
    **shared.WRONG_PASSES,
}
