"""Tokens per device, or ranks, at which traffic takes as long as the computation that hides it."""

from typing import Any

from autograder.exercise import Formula, questions
from shardlab.recorded_runs.published import MACHINES, machine_name

A100, H100 = MACHINES["A100"], MACHINES["H100"]


def asked(parallelism: str, machine: dict[str, float], **sizes: int) -> dict[str, Any]:
    return {"parallelism": parallelism, "machine": machine} | sizes


def shown(answer: str, question: dict[str, Any]) -> str:
    parallelism, machine, *sizes = question.items()
    more = "".join(f", {name}={value}" for name, value in sizes)
    return f"{answer}({parallelism[1]!r}, {machine_name(machine[1])}{more})"


EXERCISE = Formula(
    points=3,
    cases=(
        questions(
            "data: tokens per device",
            asked("data", H100, nodes=128),
            asked("data", A100, nodes=4, gradient_bytes=4),
            asked("data", A100),
        ),
        questions(
            "zero3: tokens per device",
            asked("zero3", H100, nodes=128),
            asked("zero3", A100, nodes=4, gradient_bytes=4),
            asked("zero3", A100, nodes=4, gradient_bytes=1),
        ),
        questions(
            "tensor: ranks",
            asked("tensor", H100, hidden_width=28672),
            asked("tensor", A100, hidden_width=49152),
        ),
    ),
    shown=shown,
    separate_mistakes=True,
)
