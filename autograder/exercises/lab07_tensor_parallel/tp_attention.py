"""Attention, cut by its heads: each rank needs the queries, keys and values of its own."""

from functools import partial

from autograder.exercise import OnRanks
from autograder.exercises.lab07_tensor_parallel import halves, shared
from shardlab import models

EXERCISE = OnRanks(
    points=4,
    cases=(halves.half_case(2, 4, 16, 1, 4), halves.half_case(4, 4, 16, 2, 3)),
    inputs=halves.draw_half(lambda width: {"qkv": (width, 3 * width), "out": (width, width)}),
    drive=partial(halves.drive, models.Attention),
    tolerance=shared.NEAR,
    budgets=halves.BUDGETS,
    signs=halves.SIGNS,
)
