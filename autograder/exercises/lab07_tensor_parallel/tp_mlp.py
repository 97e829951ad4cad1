"""The MLP, split by columns and then by rows: GELU works elementwise."""

from autograder.exercises.lab07_tensor_parallel.sublayers import sublayer_case, sublayer_exercise
from shardlab.models import MLP

CASES = (sublayer_case(2, 1, 6, 2, 3), sublayer_case(4, 1, 8, 1, 4))
EXERCISE = sublayer_exercise(MLP, points=3, cases=CASES)
