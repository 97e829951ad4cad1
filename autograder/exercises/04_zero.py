"""Lab 04: what ZeRO shards at each stage, as arithmetic and on real ranks."""

from __future__ import annotations

from autograder.exercises.zero_sizes import SHARD_BOUNDS, ZERO_BYTES
from autograder.exercises.zero_stage1 import ZERO1_ADAMW
from autograder.exercises.zero_stage2 import ZERO2_BACKWARD
from autograder.exercises.zero_stage3 import ZERO3_LINEAR

EXERCISES = (ZERO_BYTES, SHARD_BOUNDS, ZERO1_ADAMW, ZERO2_BACKWARD, ZERO3_LINEAR)
