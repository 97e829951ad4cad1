"""Lab 07: layers cut over ranks, the loss of a cut vocabulary, and what it all sends."""

from __future__ import annotations

from autograder.exercises.tp_counts import MESH_COORDS, TP_BYTES_PER_LAYER
from autograder.exercises.tp_halves import TP_ATTENTION, TP_MLP
from autograder.exercises.tp_linears import COLUMN_LINEAR, ROW_LINEAR
from autograder.exercises.tp_loss import VOCAB_PARALLEL_CROSS_ENTROPY

EXERCISES = (
    COLUMN_LINEAR,
    ROW_LINEAR,
    TP_MLP,
    TP_ATTENTION,
    VOCAB_PARALLEL_CROSS_ENTROPY,
    TP_BYTES_PER_LAYER,
    MESH_COORDS,
)
