"""Lab 08: a pipeline's schedules as data, and what carries them out."""

from __future__ import annotations

from autograder.exercises.pipeline_bubble import BUBBLE_FRACTION
from autograder.exercises.pipeline_naive import NAIVE_STEP
from autograder.exercises.pipeline_run import RUN_SCHEDULE
from autograder.exercises.pipeline_schedules import GPIPE, INTERLEAVED, ONE_F_ONE_B
from autograder.exercises.pipeline_zero_bubble import ZERO_BUBBLE

EXERCISES = (
    NAIVE_STEP,
    GPIPE,
    BUBBLE_FRACTION,
    ONE_F_ONE_B,
    RUN_SCHEDULE,
    INTERLEAVED,
    ZERO_BUBBLE,
)
