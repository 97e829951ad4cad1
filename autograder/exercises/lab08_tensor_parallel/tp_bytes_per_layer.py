"""What a rank sends for one layer, forward and backward."""

from autograder.exercise import Formula, questions

EXERCISE = Formula(
    points=2,
    cases=(
        questions("GPT-3's width, bf16 and fp32", (3, 2048, 12288, 8), (3, 2048, 12288, 8, 4)),
        questions(
            "on 4 ranks, on 16 and on one", (5, 100, 64, 4, 4), (5, 100, 64, 16, 2), (3, 9, 8, 1, 2)
        ),
    ),
)
