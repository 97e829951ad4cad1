"""Attention, split by heads: each rank needs the queries, keys and values of its own heads."""

from autograder.exercises.lab08_tensor_parallel.sublayers import (
    split_of,
    sublayer_case,
    sublayer_exercise,
)
from shardlab.models import Attention

CASES = (sublayer_case(2, 4, 16, 1, 4), sublayer_case(4, 4, 16, 2, 3))
SPLIT = split_of("qkv", "out")
SHARE = "heads are columns of qkv, and rows of out"
EXERCISE = sublayer_exercise(Attention, SPLIT, SHARE, points=4, cases=CASES)
