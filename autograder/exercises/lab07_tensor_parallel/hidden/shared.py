"""Right and wrong outputs of ranks, computed from one process that has the whole layer."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from autograder.exercise import Case, Plain
from autograder.exercises.lab07_tensor_parallel.shared import forward_and_backward
from autograder.exercises.lab07_tensor_parallel.sublayers import Sublayer, make_sublayer

Outputs = Callable[[Case, Any], list[Plain]]

BOUNDARIES = {
    "does not divide": "not tested: N divides everything that is split",
    "one rank": "not tested: nothing is split",
    "more ranks than elements": "not tested: N divides everything that is split",
}


def run_whole_layer(layer: nn.Module, x: Tensor, y_grad: Tensor) -> dict[str, Plain]:
    return forward_and_backward(layer, {"x": x.clone(), "y.grad": y_grad})


def run_whole_sublayer(kind: Sublayer, case: Case, inputs: Any) -> dict[str, Plain]:
    given = inputs[0]
    return run_whole_layer(make_sublayer(kind, case, given["whole"]), given["x"], given["y.grad"])


def shares(whole: Mapping[str, Plain], case: Case, split: Mapping[str, int]) -> list[Plain]:
    """`forward_and_backward`'s outputs for each rank's share, from those for the whole layer.

    ``split``: {name: dimension along which it is split}; everything else is whole on all ranks.
    """
    outputs = []
    for rank in range(case.world_size):
        own = {key: whole[key].chunk(case.world_size, dim)[rank] for key, dim in split.items()}
        output = {**whole, **own}
        names = [name for name, _ in whole["parameters"]]
        output["parameters"] = [[name, list(output[f"{name}.grad"].shape)] for name in names]
        outputs.append(output)
    return outputs


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


def bias_gradient_averaged(reference: Outputs) -> Outputs:
    return scaled(reference, lambda case: 1 / math.prod(case.params["batch"]), "bias.grad")


BIAS_AVERAGED = "averages the bias's gradient over the tokens: it is their sum"
