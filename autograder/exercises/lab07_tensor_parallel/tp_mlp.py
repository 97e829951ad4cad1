"""The MLP, split by columns and then by rows: GELU works elementwise."""

from autograder.exercises.lab07_tensor_parallel.sublayers import (
    split_of,
    sublayer_case,
    sublayer_exercise,
)
from shardlab.models import MLP

CASES = (sublayer_case(2, 1, 6, 2, 3), sublayer_case(4, 1, 7, 2, 5))
SPLIT = split_of("up", "down")
EXERCISE = sublayer_exercise(MLP, SPLIT, points=3, cases=CASES)
