"""What a rank sends in a whole ring."""

from autograder.exercise import Formula, questions

EXERCISE = Formula(
    points=2,
    cases=(
        questions("1,000 float32 on 4 ranks and on one", (1000, 4, 4), (1000, 4, 1)),
        questions("2²⁰ bfloat16 on 8 ranks", (2**20, 2, 8)),
    ),
)
