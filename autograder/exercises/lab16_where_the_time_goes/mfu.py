"""The share of the devices' peak that a training run's log line and configuration amount to."""

from typing import Any

from autograder.exercise import Case, Formula, questions
from shardlab.recorded_runs.published import PUBLISHED

Run = dict[str, Any]


def published(name: str, *runs: str, weight: float = 1.0) -> Case:
    return questions(name, *(PUBLISHED[run].question for run in runs), weight=weight)


def shown(answer: str, run: Run) -> str:
    """Published runs by their name in the notebook; of others, what differs between them."""
    for name, each in PUBLISHED.items():
        if each.question == run:
            return f"{answer}(**RUNS[{name!r}])"
    devices = run["cluster"]["devices"]
    again = ", full recomputation" if run.get("recomputed") else ""
    return f"{answer}({' and '.join(run['log'])} in the log, {devices} devices{again})"


EXERCISE = Formula(
    points=4,
    cases=(
        published("PaLM", "PaLM 540B"),
        published("Llama 3.1, GPUs with sparsity", "Llama 3.1 8B", "Llama 3.1 8B, 128 GPUs"),
        published("BLOOM with full recomputation", "BLOOM 176B"),
        published("a mixture of experts", "Mixtral 8x7B"),
    ),
    shown=shown,
    separate_mistakes=True,
)
