"""The MLP, cut by columns and then by rows: a gelu works on each element for itself."""

from autograder.exercises.lab07_tensor_parallel.halves import cut_half, half_case
from shardlab.models import MLP

EXERCISE = cut_half(MLP, points=3, cases=(half_case(2, 1, 6, 2, 3), half_case(4, 1, 8, 1, 4)))
