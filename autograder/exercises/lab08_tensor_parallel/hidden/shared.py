"""Right and wrong outputs of ranks, computed from one process that has the whole layer."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from autograder.exercise import Case, Plain
from autograder.exercises.common import linear_of
from autograder.exercises.lab08_tensor_parallel.shared import (
    Split,
    after_an_update,
    forward_and_backward,
    shapes_of,
)
from autograder.exercises.lab08_tensor_parallel.sublayers import Sublayer, make_sublayer

Outputs = Callable[[Case, Any], list[Plain]]

BOUNDARIES = {
    "does not divide": "not tested: N divides everything that is split",
    "one rank": "not tested: nothing is split",
    "more ranks than elements": "not tested: N divides everything that is split",
}


def run_whole_layer(layer: nn.Module, x: Tensor, y_grad: Tensor) -> dict[str, Plain]:
    return forward_and_backward(layer, {"x": x.clone(), "y.grad": y_grad})


def run_whole_linear(case: Case, whole: Any, x: Tensor, y_grad: Tensor) -> dict[str, Plain]:
    layer = linear_of(**{name: each.clone() for name, each in whole.items()})  # it is updated
    found = run_whole_layer(layer, x, y_grad)
    if "more_steps" in case.params:
        found["later"] = after_an_update(layer, {"x": x, "y.grad": y_grad}, passes=1)["later"]
    return found


def run_whole_sublayer(kind: Sublayer, case: Case, inputs: Any) -> dict[str, Plain]:
    given = inputs[0]
    return run_whole_layer(make_sublayer(kind, case, given["whole"]), given["x"], given["y.grad"])


def shares(
    whole: Mapping[str, Plain], case: Case, split: Split, tensors: Split | None = None
) -> list[Plain]:
    """`forward_and_backward`'s outputs for each rank's share, from those for the whole layer.

    ``split``: of parameters, and so of their gradients; ``tensors``: of other outputs.
    """
    by_key = {f"{name}.grad": dim for name, dim in split.items()} | dict(tensors or {})
    outputs = []
    for rank in range(case.world_size):
        output = part_of(whole, by_key, case, rank)
        output["parameters"] = shapes_of({k: output[f"{k}.grad"] for k in whole["parameters"]})
        outputs.append(output)
    return outputs


def part_of(outputs: Mapping[str, Plain], by_key: Split, case: Case, rank: int) -> dict[str, Plain]:
    part = dict(outputs)
    for key, value in outputs.items():
        if key in by_key:
            part[key] = value.chunk(case.world_size, by_key[key])[rank]
        elif key == "later":
            part[key] = part_of(value, by_key, case, rank)
    return part


def scaled(reference: Outputs, by: Callable[[Case], float], *keys: str) -> Outputs:
    """Some of the right outputs, multiplied by a number; of x's gradient the layer's own part."""

    def outputs(case: Case, inputs: Any) -> list[Plain]:
        return [
            {key: by(case) * right[key] + (1 - by(case)) * kept_of(key, given) for key in keys}
            for right, given in zip(reference(case, inputs), inputs, strict=True)
        ]

    return outputs


def kept_of(key: str, given: Any) -> Any:
    """The part of a gradient that does not come from the layer: see `forward_and_backward`."""
    return given["x"] if key == "x.grad" else 0
