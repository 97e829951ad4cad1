"""Lab 10: checkpoints by slices, for other ranks, whenever they are killed, and to the bit."""

from __future__ import annotations

from autograder.exercises.atomic_commit import ATOMIC_COMMIT
from autograder.exercises.load_sharded import LOAD_SHARDED
from autograder.exercises.resumed_training import TRAIN_RESUMABLE
from autograder.exercises.save_sharded import SAVE_SHARDED

EXERCISES = (SAVE_SHARDED, LOAD_SHARDED, ATOMIC_COMMIT, TRAIN_RESUMABLE)
