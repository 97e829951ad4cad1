"""What each rank sends and receives when gradients are all-reduced in a ring."""

from autograder.exercises.lab02_dp_vs_ddp import hub_bytes

EXERCISE = hub_bytes.EXERCISE
