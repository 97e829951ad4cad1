"""The MLP, cut by columns and then by rows: a gelu works on each element for itself."""

from functools import partial

from autograder.exercise import OnRanks
from autograder.exercises.lab07_tensor_parallel import halves, shared
from shardlab import models

EXERCISE = OnRanks(
    points=3,
    cases=(halves.half_case(2, 1, 6, 2, 3), halves.half_case(4, 1, 8, 1, 4)),
    inputs=halves.draw_half(lambda width: {"up": (width, 4 * width), "down": (4 * width, width)}),
    drive=partial(halves.drive, models.MLP),
    tolerance=shared.NEAR,
    budgets=halves.BUDGETS,
    signs=halves.SIGNS,
)
