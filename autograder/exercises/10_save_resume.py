"""Lab 10: checkpoints by slices, for other ranks, whenever they are killed, and to the bit."""

from __future__ import annotations

from autograder.exercises.atomic_commit import ATOMIC_COMMIT
from autograder.exercises.checkpoint_shards import LOAD_SHARDED, SAVE_SHARDED
from autograder.exercises.resumed_training import TRAIN_RESUMABLE

EXERCISES = (SAVE_SHARDED, LOAD_SHARDED, ATOMIC_COMMIT, TRAIN_RESUMABLE)
