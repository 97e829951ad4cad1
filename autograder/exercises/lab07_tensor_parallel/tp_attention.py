"""Attention, cut by its heads: each rank needs the queries, keys and values of its own."""

from autograder.exercises.lab07_tensor_parallel.halves import cut_half, half_case
from shardlab.models import Attention

CASES = (half_case(2, 4, 16, 1, 4), half_case(4, 4, 16, 2, 3))
EXERCISE = cut_half(Attention, points=4, cases=CASES)
