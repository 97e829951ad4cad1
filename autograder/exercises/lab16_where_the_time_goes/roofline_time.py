"""The least time of a matrix product that is split over ranks, and of its all-reduce."""

from collections.abc import Sequence
from typing import Any

from autograder.exercise import Formula, Plain, questions
from autograder.exercise.signs import MistakeText
from shardlab.recorded_runs.published import MACHINES, machine_name

A100, H100 = MACHINES["A100"], MACHINES["H100"]


def shown(answer: str, question: Sequence[Any]) -> str:
    *sizes, machine = question[:5]
    ranks = [f"ranks={each}" for each in question[5:]]
    return f"{answer}({', '.join([*map(str, sizes), machine_name(machine), *ranks])})"


def reduces_on_one_rank(question: Sequence[Any], right: Plain, answer: Plain) -> MistakeText:
    sends = isinstance(answer, dict) and answer.get("all_reduce_s") != 0
    alone = len(question) == 5 or question[5] == 1
    return (
        "reduces on one rank, which has nothing to add: all_reduce_s is 0"
        if alone and sends
        else None
    )


EXERCISE = Formula(
    points=3,
    cases=(
        questions(
            "one device: many rows, few rows, a small inner dimension",
            (8192, 4096, 16384, 2, H100),
            (16, 4096, 16384, 2, H100),
            (8192, 64, 4096, 4, A100),
        ),
        questions(
            "several ranks: a large all-reduce, a small one",
            (8192, 28672, 8192, 2, H100, 8),
            (16, 49152, 12288, 4, A100, 4),
            (8192, 256, 8192, 2, A100, 16),
        ),
    ),
    forms=(reduces_on_one_rank,),
    shown=shown,
    separate_mistakes=True,
)
