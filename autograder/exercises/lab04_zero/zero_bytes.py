"""Bytes of model states on a rank, by ZeRO stage."""

from autograder.exercise import Case, Formula, questions


def papers_table(parameters: int, name: str) -> Case:
    """Rajbhandari et al. 2020, table 1: one column per stage, one row per number of ranks."""
    asked = [
        (parameters, n, stage, False) for n in (1, 4, 16, 64, 256, 1024) for stage in (1, 2, 3)
    ]
    return questions(f"the paper's table, {name}", *asked, weight=0.5)


EXERCISE = Formula(
    points=3,
    cases=(
        questions("stage 0: everything everywhere", (7_500_000_000, 64, 0), weight=0.5),
        papers_table(7_500_000_000, "7.5B"),
        papers_table(128_000_000_000, "128B"),
        questions("10B with offload on 7 ranks", (10**10, 7, 2, True), (10**10, 7, 3, True)),
    ),
)
