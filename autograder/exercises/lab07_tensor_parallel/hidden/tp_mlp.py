from typing import Any

from torch.nn.functional import gelu

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EqualAnswer, shaken
from autograder.exercises.lab07_tensor_parallel.hidden import shared
from autograder.exercises.lab07_tensor_parallel.sublayers import sublayer_case
from shardlab import models

CASES = (sublayer_case(2, 1, 10, 3, 2), shaken(sublayer_case(4, 1, 7, 2, 5)))
BOUNDARIES = shared.BOUNDARIES | {
    "divides": "2 ranks, width 6",
    "does not divide": "4 ranks, width 7",  # only the inner width does
}


def reference(case: Case, inputs: Any) -> list[Plain]:
    split = {"up.weight.grad": 0, "up.bias.grad": 0, "down.weight.grad": 1}
    return shared.shares(shared.run_whole_sublayer(models.MLP, case, inputs), case, split)


def without_gelu(case: Case, inputs: Any) -> Plain:
    up, up_bias, down, down_bias = inputs[0]["whole"].values()
    return {"y": (inputs[0]["x"] @ up.T + up_bias) @ down.T + down_bias}


def gelu_of_partial_sums(case: Case, inputs: Any) -> Plain:
    """Up split by rows: each rank applies GELU to its partial sum of the inner values."""
    up, up_bias, down, down_bias = inputs[0]["whole"].values()
    parts = (each.tensor_split(case.world_size, dim=-1) for each in (inputs[0]["x"], up))
    inner = sum(gelu(x @ columns.T) for x, columns in zip(*parts, strict=True))
    return {"y": (inner + up_bias) @ down.T + down_bias}


MISTAKES = {
    "leaves out the GELU between the two layers": without_gelu,
    "applies GELU to partial sums: the GELU of a sum is not the sum of GELUs, so split the first "
    "layer by columns": gelu_of_partial_sums,
}
EQUAL_ANSWERS = (
    EqualAnswer(
        "mlp.up = ColumnLinear(mlp.up)\n    mlp.down = RowLinear(mlp.down)",
        "mlp.down = RowLinear(mlp.down)\n    mlp.up = ColumnLinear(mlp.up)",
        "the two are independent",
    ),
)
