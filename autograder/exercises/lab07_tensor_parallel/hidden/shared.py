"""Right and wrong outputs of ranks, made from one process that has the whole layer."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from autograder.exercise import Case, Plain
from autograder.exercises.lab07_tensor_parallel.halves import Kind, half_of
from autograder.exercises.lab07_tensor_parallel.shared import there_and_back

Outputs = Callable[[Case, Any], list[Plain]]

BOUNDARIES = {
    "does not divide": "not asked: N divides all that is cut",
    "one rank": "not asked: nothing is cut",
    "more ranks than elements": "not asked: N divides all that is cut",
}


def whole_layer(layer: nn.Module, x: Tensor, y_grad: Tensor) -> dict[str, Plain]:
    return there_and_back(layer, {"x": x.clone(), "y.grad": y_grad})


def whole_half(kind: Kind, case: Case, inputs: Any) -> dict[str, Plain]:
    given = inputs[0]
    return whole_layer(half_of(kind, case, given["whole"]), given["x"], given["y.grad"])


def shares(whole: Mapping[str, Plain], case: Case, cut: Mapping[str, int]) -> list[Plain]:
    """What `there_and_back` gives of each rank's share of a layer, from what it gives of all of it.

    ``cut``: the dimensions along which ranks have a part, by name; all else is whole everywhere.
    """
    outputs = []
    for rank in range(case.world_size):
        own = {key: whole[key].chunk(case.world_size, dim)[rank] for key, dim in cut.items()}
        output = {**whole, **own}
        names = [name for name, _ in whole["parameters"]]
        output["parameters"] = [[name, list(output[f"{name}.grad"].shape)] for name in names]
        outputs.append(output)
    return outputs


def scaled(reference: Outputs, by: Callable[[Case], float], *keys: str) -> Outputs:
    """Some of the right outputs, all times one number."""

    def outputs(case: Case, inputs: Any) -> list[Plain]:
        return [{key: by(case) * right[key] for key in keys} for right in reference(case, inputs)]

    return outputs
