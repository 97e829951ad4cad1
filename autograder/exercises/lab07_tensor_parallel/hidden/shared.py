"""Right and wrong outputs of ranks, made from one process that has the whole layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from autograder.exercise import Case, Plain
from autograder.exercises.lab07_tensor_parallel.shared import FLOAT_BYTES

Outputs = Callable[[Case, Any], list[Plain]]

BOUNDARIES = {
    "does not divide": "not asked: N divides all that is cut",
    "one rank": "not asked: nothing is cut",
    "more ranks than elements": "not asked: N divides all that is cut",
}


def shares(whole: Mapping[str, Plain], case: Case, **cut: int) -> list[Plain]:
    """What `there_and_back` gives of each rank's share of a layer, from what it gives of all of it.

    ``cut``: the dimensions along which ranks have a part, by name; all else is whole everywhere.
    """
    return [share(whole, rank, case.world_size, cut) for rank in range(case.world_size)]


def share(whole: Mapping[str, Plain], rank: int, world_size: int, cut: Mapping[str, int]) -> Plain:
    output = dict(whole)
    for key, dim in cut.items():
        output[key] = whole[key].chunk(world_size, dim)[rank]
    parameters = {
        key.removesuffix(".grad"): gradient
        for key, gradient in output.items()
        if key.endswith(".grad") and key != "x.grad"
    }
    output["parameters"] = [[name, list(parameters[name].shape)] for name in sorted(parameters)]
    output["bytes of parameters"] = FLOAT_BYTES * sum(map(lambda g: g.numel(), parameters.values()))
    return output


def scaled(reference: Outputs, by: Callable[[int], float], *keys: str) -> Outputs:
    """Some of the right outputs, all times one number, which may depend on N."""

    def outputs(case: Case, inputs: Any) -> list[Plain]:
        factor = by(case.world_size)
        return [{key: factor * right[key] for key in keys} for right in reference(case, inputs)]

    return outputs


def one_over_n(world_size: int) -> float:
    return 1 / world_size


def n_times(world_size: int) -> float:
    return world_size
