"""The fraction of a step for which a device of a pipeline idles."""

from autograder.exercise import Formula, questions

EXERCISE = Formula(
    points=2,
    cases=(
        questions("one chunk: m > p, one device, m < p", (4, 8), (5, 7), (1, 5), (8, 3)),
        questions("8 devices, 4 chunks, 16 micro-batches", (8, 16, 4)),
    ),
)
