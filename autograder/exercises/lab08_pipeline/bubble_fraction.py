"""The fraction of a step for which a device of a pipeline idles."""

from autograder.exercise import Formula, questions

EXERCISE = Formula(
    points=2,
    cases=(
        questions("4 devices, 8 micro-batches", (4, 8)),
        questions("8 devices, 4 chunks, 16 micro-batches", (8, 16, 4)),
    ),
)
