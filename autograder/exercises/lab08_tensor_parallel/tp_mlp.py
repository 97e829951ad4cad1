"""The MLP, split by columns and then by rows: GELU works elementwise."""

from autograder.exercises.lab08_tensor_parallel.sublayers import (
    split_of,
    sublayer_case,
    sublayer_exercise,
)
from shardlab.models import MLP

CASES = (sublayer_case(2, 1, 6, 2, 3), sublayer_case(4, 1, 7, 2, 5))
SPLIT = split_of("up", "down")
SHARE = (
    "the GELU of a sum is not the sum of GELUs, so up is split by columns; these multiply only the "
    "same rows of down, so down is split by rows"
)
EXERCISE = sublayer_exercise(MLP, SPLIT, SHARE, points=3, cases=CASES)
