"""What a rank sends for one layer, forward and backward."""

from autograder.exercise import Formula, questions

EXERCISE = Formula(
    points=2,
    cases=(
        questions("GPT-3's width, bf16 and fp32", (3, 2048, 12288, 8, 2), (3, 2048, 12288, 8, 4)),
        questions("on 4 ranks and on 16", (5, 100, 64, 4, 4), (5, 100, 64, 16, 2)),
    ),
)
