"""References for several exercises: a step without checkpointing, and wrong gradients."""

from collections.abc import Callable
from itertools import cycle
from operator import mul
from typing import Any

from autograder.exercise import Case, Plain
from autograder.exercises.lab09_activation_checkpointing.networks import plain_step
from autograder.exercises.lab09_activation_checkpointing.shared import VALUES, results

_, ARGUMENTS, WEIGHTS = VALUES


def reference(case: Case, inputs: Any) -> list[dict[str, Plain]]:
    times = [2] * case.params["blocks"]
    if case.params.get("network") == "nested":  # in forward, in the outer's second run, in its own
        times[1:] = [3] * (len(times) - 1)
    plain = [results(plain_step(given, case), case) for given in inputs]
    return [
        right | {"runs": [*map(mul, times, right["runs"])], "bit for bit": True} for right in plain
    ]


def times(key: str, *factors: int) -> Callable[[Case, Any], list[Plain]]:
    """The right gradients, each times its factor; the factors repeat."""
    return lambda case, inputs: [
        {key: [factor * each for factor, each in zip(cycle(factors), right[key], strict=False)]}
        for right in reference(case, inputs)
    ]


OFF_BY_BITS = {
    "gives gradients that differ from those without checkpointing": (
        lambda case, inputs: {"bit for bit": False}
    )
}
MISTAKES = {
    "returns no gradient for an argument that has one": tuple(
        times(ARGUMENTS, *factors) for factors in ((0,), (0, 1), (1, 0))
    ),
    "leaves the function's weights without a gradient: torch.autograd.grad computes only the "
    "inputs' gradients, torch.autograd.backward fills every .grad": times(WEIGHTS, 0),
    "adds a gradient twice: backward on inputs that were not detached adds to their .grad, and "
    "autograd adds the returned gradient again": times(ARGUMENTS, 2),
}
