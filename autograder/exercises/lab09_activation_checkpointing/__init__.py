"""Lab 09: to keep inputs and compute the rest again; where, how much it saves, and over ranks."""

from __future__ import annotations

from autograder.exercises.activation_sizes import ACTIVATION_BYTES
from autograder.exercises.checkpoint_function import CHECKPOINT
from autograder.exercises.checkpoint_partitioned import PARTITIONED_CHECKPOINT
from autograder.exercises.checkpoint_segments import CHECKPOINT_SEQUENTIAL

EXERCISES = (CHECKPOINT, CHECKPOINT_SEQUENTIAL, ACTIVATION_BYTES, PARTITIONED_CHECKPOINT)
