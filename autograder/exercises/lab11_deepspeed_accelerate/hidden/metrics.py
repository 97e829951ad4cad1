from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import with_random_delays
from autograder.exercises.lab11_deepspeed_accelerate.metrics import repeats

CASES = (
    with_random_delays(
        Case("3 ranks, 8 samples in twos", 3, {"samples": 8, "batch": 2, "stream": False})
    ),
    Case("4 ranks, a stream of 3 samples", 4, {"samples": 3, "batch": 1, "stream": True}),
)
BOUNDARIES = {
    "divides": "2 ranks, a stream of 8 in twos",
    "does not divide": "4 ranks, 10 samples",
    "one rank": "not tested: one rank repeats no sample",
    "more ranks than elements": "4 ranks, a stream of 3 samples",
}

Hits = list[bool]


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def hits_of(inputs: Any) -> Hits:
    """Whether each sample of the dataset is right."""
    given = inputs[0]
    predicted = (given["inputs"] @ given["weight"].T).argmax(dim=1)
    hits: Hits = torch.eq(predicted, given["targets"]).tolist()
    return hits


def padded(case: Case, hits: Hits) -> Hits:
    """The samples of all ranks: the loader starts over to fill the last batches."""
    return [hits[i % len(hits)] for i in range(len(hits) + repeats(case))]


def reference(case: Case, inputs: Any) -> list[Plain]:
    return on_every_rank(case, mean(hits_of(inputs)))


def on_every_rank(case: Case, accuracy: float) -> list[Plain]:
    return [{"accuracy": float(accuracy)}] * case.world_size


def by(rule: Callable[[Case, Hits], float | None]) -> Callable[..., list[Plain] | None]:
    def wrong(case: Case, inputs: Sequence[Plain]) -> list[Plain] | None:
        accuracy = rule(case, hits_of(inputs))
        return None if accuracy is None else on_every_rank(case, accuracy)

    return wrong


def stream_with_repeats(case: Case, hits: Hits) -> float | None:
    return mean(padded(case, hits)) if case.params["stream"] else None


def mean_of_batches(case: Case, hits: Hits, drops_repeats: bool) -> float:
    """``drops_repeats``: even those of streams."""
    if case.params["stream"] and not drops_repeats:
        hits = padded(case, hits)
    together = case.world_size * case.params["batch"]
    batches = [hits[start : start + together] for start in range(0, len(hits), together)]
    return mean([mean(batch) for batch in batches])


def own_accuracy(case: Case, inputs: Any) -> list[Plain]:
    hits = torch.tensor(padded(case, hits_of(inputs)))
    batches = hits.view(-1, case.world_size, case.params["batch"])  # each rank's, in turn
    return [{"accuracy": own} for own in batches.double().mean(dim=(0, 2)).tolist()]


MISTAKES = {
    "counts samples that the loader repeated to fill the last batch: a stream has no length, so "
    "gather_for_metrics cannot know how many to drop, but their index shows it": (
        by(stream_with_repeats)
    ),
    "counts samples that the loader repeated to fill the last batch: gather returns all of them, "
    "and a mean over ranks contains them": by(lambda case, hits: mean(padded(case, hits))),
    "counts right answers of samples that the loader repeated, but divides by the number of the "
    "dataset's samples": by(lambda case, hits: sum(padded(case, hits)) / len(hits)),
    "averages the accuracies of batches: the last one has fewer samples, so add up right answers "
    "and samples, and divide at the end": (
        by(partial(mean_of_batches, drops_repeats=False)),
        by(partial(mean_of_batches, drops_repeats=True)),
    ),
    "returns the accuracy of its own rank's samples only": own_accuracy,
}
