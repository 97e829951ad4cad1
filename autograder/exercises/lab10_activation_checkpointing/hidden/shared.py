"""For several exercises: the reference, a step without checkpointing, and a named mistake."""

from operator import mul
from typing import Any

import torch

from autograder.exercise import Case
from autograder.exercises.lab10_activation_checkpointing.networks import plain_step
from autograder.exercises.lab10_activation_checkpointing.shared import (
    BITS,
    RUNS,
    VALUES,
    dtype_of,
    results,
)

_, ARGUMENTS, WEIGHTS = VALUES


def right_results(case: Case, inputs: Any) -> list[dict[str, Any]]:
    return [results(plain_step(given, case), case) for given in inputs]


def reference(case: Case, inputs: Any) -> list[dict[str, Any]]:
    times = [2] * case.params["blocks"]
    if case.params.get("network") == "nested":  # in forward, in the outer's second run, in its own
        times[1:] = [3] * (len(times) - 1)
    found = []
    for right in right_results(case, inputs):
        runs = [*map(mul, times, right[RUNS])]
        if dtype_of(case) == torch.bfloat16 and not case.hidden:
            # On another kind of CPU last digits may differ, by more than the tolerance.
            right = {name: right[name] for name in right if name not in VALUES}
        found.append(right | {RUNS: runs, BITS: True})
    return found


def none_for_weights(case: Case, inputs: Any) -> list[dict[str, Any]]:
    return [
        {ARGUMENTS: right[ARGUMENTS], WEIGHTS: [0 * each for each in right[WEIGHTS]]}
        for right in right_results(case, inputs)
    ]


def none_at_all(case: Case, inputs: Any) -> list[dict[str, Any]] | None:
    """What the first output alone gives where it is an index."""
    if case.params.get("network") != "several":
        return None
    return [
        right | {ARGUMENTS: {name: 0 * each for name, each in right[ARGUMENTS].items()}}
        for right in none_for_weights(case, inputs)
    ]


MISTAKES = {
    "leaves the function's weights without a gradient: torch.autograd.grad computes only the "
    "inputs' gradients, torch.autograd.backward fills every .grad": none_for_weights,
    "leaves all gradients at 0 where the first output is an index: backpropagate every output that "
    "requires a gradient, not only the first": none_at_all,
}
