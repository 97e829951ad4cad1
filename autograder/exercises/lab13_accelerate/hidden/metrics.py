from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import with_random_delays
from autograder.exercises.lab13_accelerate.metrics import own_samples, repeats

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


def hits_of(case: Case, inputs: Any) -> Hits:
    """Whether each sample of the dataset is right: on a rank that has it."""
    found = torch.zeros(case.params["samples"], dtype=torch.bool)
    for rank, given in enumerate(inputs):
        predicted = (given["inputs"] @ given["weight"].T).argmax(dim=1)
        found |= torch.eq(predicted, given["targets"]) & own_samples(case, rank)
    hits: Hits = found.tolist()
    return hits


def padded(case: Case, hits: Hits) -> Hits:
    """The samples of all ranks: the loader starts over to fill the last batches."""
    return [hits[i % len(hits)] for i in range(len(hits) + repeats(case))]


def by(rule: Callable[[Case, Hits], float | None]) -> Callable[[Case, Any], Plain]:
    def outputs(case: Case, inputs: Any) -> Plain:
        accuracy = rule(case, hits_of(case, inputs))
        return None if accuracy is None else {"accuracy": accuracy}

    return outputs


reference = by(lambda case, hits: mean(hits))


def mean_of_batches(case: Case, hits: Hits) -> float:
    """As gather_for_metrics gives them, with the repeated samples of a stream."""
    if case.params["stream"]:
        hits = padded(case, hits)
    together = case.world_size * case.params["batch"]
    return mean([mean(hits[i : i + together]) for i in range(0, len(hits), together)])


def own_accuracy(case: Case, inputs: Any) -> list[Plain]:
    hits = torch.tensor(padded(case, hits_of(case, inputs)))
    batches = hits.view(-1, case.world_size, case.params["batch"])  # each rank's, in turn
    return [{"accuracy": own} for own in batches.double().mean(dim=(0, 2)).tolist()]


MISTAKES = {
    "counts samples that the loader repeated to fill the last batch: a stream has no length, so "
    "gather_for_metrics cannot know how many to drop, but their index shows it": by(
        lambda case, hits: mean(padded(case, hits)) if case.params["stream"] else None
    ),
    "counts samples that the loader repeated to fill the last batch: gather returns all of them, "
    "and sums and means over the ranks contain them": by(
        lambda case, hits: mean(padded(case, hits))
    ),
    "averages the accuracies of batches: the last one has fewer samples, so add up right answers "
    "and samples, and divide at the end": by(mean_of_batches),
    "returns the accuracy of its own rank's samples only": own_accuracy,
}
