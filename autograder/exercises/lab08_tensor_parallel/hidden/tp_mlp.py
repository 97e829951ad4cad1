from typing import Any

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab08_tensor_parallel.hidden import shared
from autograder.exercises.lab08_tensor_parallel.sublayers import sublayer_case
from autograder.exercises.lab08_tensor_parallel.tp_mlp import SPLIT
from shardlab import models

CASES = (sublayer_case(2, 1, 10, 3, 2), with_random_delays(sublayer_case(4, 1, 8, 1, 4)))
BOUNDARIES = shared.BOUNDARIES | {
    "divides": "2 ranks, width 6",
    "does not divide": "4 ranks, width 7",  # only the inner width does
}


def reference(case: Case, inputs: Any) -> list[Plain]:
    return shared.shares(shared.run_whole_sublayer(models.MLP, case, inputs), case, SPLIT)


def without_gelu(case: Case, inputs: Any) -> Plain:
    up, up_bias, down, down_bias = inputs[0]["whole"].values()
    return {"y": (inputs[0]["x"] @ up.T + up_bias) @ down.T + down_bias}


MISTAKES = {"leaves out the GELU between the two layers": without_gelu}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "mlp.up = ColumnLinear(mlp.up)\n    mlp.down = RowLinear(mlp.down)",
        "mlp.down = RowLinear(mlp.down)\n    mlp.up = ColumnLinear(mlp.up)",
        "the two are independent",
    ),
)
