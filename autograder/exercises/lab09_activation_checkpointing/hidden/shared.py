"""For several exercises: the reference, a step without checkpointing, and a named mistake."""

from operator import mul
from typing import Any

from autograder.exercise import Case, Plain
from autograder.exercises.lab09_activation_checkpointing.networks import plain_step
from autograder.exercises.lab09_activation_checkpointing.shared import BITS, RUNS, VALUES, results

_, _, WEIGHTS = VALUES


def reference(case: Case, inputs: Any) -> list[dict[str, Plain]]:
    times = [2] * case.params["blocks"]
    if case.params.get("network") == "nested":  # in forward, in the outer's second run, in its own
        times[1:] = [3] * (len(times) - 1)
    found = []
    for given in inputs:
        right = results(plain_step(given, case), case)
        found.append(right | {RUNS: [*map(mul, times, right[RUNS])], BITS: True})
    return found


def none_for_weights(case: Case, inputs: Any) -> list[dict[str, Plain]]:
    return [{WEIGHTS: [0 * each for each in right[WEIGHTS]]} for right in reference(case, inputs)]


MISTAKES = {
    "leaves the function's weights without a gradient: torch.autograd.grad computes only the "
    "inputs' gradients, torch.autograd.backward fills every .grad": none_for_weights
}
