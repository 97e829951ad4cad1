from typing import Any

from torch.nn.functional import gelu

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EqualAnswer, shaken
from autograder.exercises.lab07_tensor_parallel.halves import half_case
from autograder.exercises.lab07_tensor_parallel.hidden import shared
from shardlab import models

CASES = (half_case(2, 1, 10, 3, 2), shaken(half_case(4, 1, 7, 2, 5)))
BOUNDARIES = shared.BOUNDARIES | {
    "divides": "2 ranks, width 6",
    "does not divide": "4 ranks, width 7",  # the inner width alone does
}


def reference(case: Case, inputs: Any) -> list[Plain]:
    cut = {"up.weight.grad": 0, "up.bias.grad": 0, "down.weight.grad": 1}
    return shared.shares(shared.whole_half(models.MLP, case, inputs), case, cut)


def without_gelu(case: Case, inputs: Any) -> Plain:
    up, up_bias, down, down_bias = inputs[0]["whole"].values()
    return {"y": (inputs[0]["x"] @ up.T + up_bias) @ down.T + down_bias}


def gelu_of_partial_sums(case: Case, inputs: Any) -> Plain:
    """Up cut by rows: each rank has a summand of the inner values, of which it takes the gelu."""
    up, up_bias, down, down_bias = inputs[0]["whole"].values()
    parts = (each.tensor_split(case.world_size, dim=-1) for each in (inputs[0]["x"], up))
    inner = sum(gelu(x @ columns.T) for x, columns in zip(*parts, strict=True))
    return {"y": (inner + up_bias) @ down.T + down_bias}


MISTAKES = {
    "leaves out the gelu between the two layers": without_gelu,
    "takes the gelu of summands: the gelu of a sum is not the sum of gelus, so cut the first layer "
    "by columns": gelu_of_partial_sums,
}
EQUAL_ANSWERS = (
    EqualAnswer(
        "mlp.up = ColumnLinear(mlp.up)\n    mlp.down = RowLinear(mlp.down)",
        "mlp.down = RowLinear(mlp.down)\n    mlp.up = ColumnLinear(mlp.up)",
        "neither looks at the other",
    ),
)
