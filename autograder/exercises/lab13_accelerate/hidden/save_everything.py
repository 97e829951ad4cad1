from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.lab13_accelerate.save_everything import (
    BATCH,
    DECAY,
    LR,
    Average,
    Progress,
    new_model,
    of_starts,
    stopping,
)
from autograder.exercises.lab13_accelerate.shared import with_weights

CASES = (
    with_random_delays(stopping("3 ranks, stopped at the end of an epoch", 3, 18, 3, 5)),
    stopping("2 ranks, stopped in the third epoch", 2, 16, 9, 13),
)
BOUNDARIES = {
    "divides": "2 ranks, stopped in the second epoch",
    "does not divide": "4 ranks, 10 samples, stopped twice",
    "one rank": "not tested: all of it is the same on one rank",
    "more ranks than elements": "not tested: a rank without samples cannot train",
    "the end of an epoch": "3 ranks, stopped at the end of an epoch",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "if job.progress.steps == until:",
        "if True:",
        "it leaves the epoch after each step and finds its place again: slow, but correct",
    ),
)


def batches_of(case: Case, given: Any, epoch: int) -> Tensor:
    """Indices, in the order that accelerate's SeedableRandomSampler draws: [steps, ranks, batch]"""
    generator = torch.Generator().manual_seed(given["data seed"] + epoch)
    order = torch.randperm(case.params["samples"], generator=generator)
    pad = -len(order) % (BATCH * case.world_size)
    return torch.cat([order, order[:pad]]).view(-1, case.world_size, BATCH)


class RandomStates:
    """The random states of all ranks. ``states``: by rank."""

    def __init__(self, inputs: Any, start: int) -> None:
        seeds = [each["seeds"][start] for each in inputs]
        self.states = [torch.Generator().manual_seed(seed).get_state() for seed in seeds]

    @contextmanager
    def of_rank(self, rank: int) -> Iterator[None]:
        torch.set_rng_state(self.states[rank])
        yield
        self.states[rank] = torch.get_rng_state()

    def state_dict(self) -> dict[str, list[Tensor]]:
        return {"states": self.states}

    def load_state_dict(self, saved: dict[str, list[Tensor]]) -> None:
        self.states = [*saved["states"]]


@torch.random.fork_rng(devices=[])
def reference(
    case: Case,
    inputs: Any,
    lost: Sequence[str] = (),
    epochs_from: Callable[[int], Iterable[int]] = itertools.count,
    skips_used: bool = True,
    skips_always: bool = False,
) -> list[Plain]:
    """Train in one process. ``lost``: what starts anew at each start; ``epochs_from``: the epochs
    whose order is drawn, from that of the last checkpoint; ``skips_used``: its first batches, or
    those of every epoch (``skips_always``)."""
    given, saved = inputs[0], dict[str, Any]()
    losses: list[list[Tensor]] = [[] for _ in inputs]
    for start, end in enumerate(case.params["ends"]):
        model = with_weights(new_model(), given["weights"][start])
        optimizer = torch.optim.AdamW(model.parameters(), LR)
        scheduler = LambdaLR(optimizer, lambda step: DECAY**step)
        average, progress, dropout = Average(model), Progress(), RandomStates(inputs, start)
        names = "model", "optimizer", "scheduler", "average", "progress", "dropout"
        parts: list[Any] = [model, optimizer, scheduler, average, progress, dropout]
        for name, part in zip(names, parts, strict=True):
            if name in saved and name not in lost:
                part.load_state_dict(saved[name])
        epoch, used = divmod(progress.steps, len(batches_of(case, given, 0)))
        batches_left = itertools.chain.from_iterable(
            batches_of(case, given, each)[used if skips_always else 0 :]
            for each in epochs_from(epoch)
        )
        own: list[list[float]] = [[] for _ in inputs]
        skipped = used if skips_used and not skips_always else 0
        for batches in itertools.islice(batches_left, skipped, None):
            if progress.steps == end:
                break
            for rank, indices in enumerate(batches):
                with dropout.of_rank(rank):
                    output = model(given["inputs"][indices])
                loss = (output - given["targets"][indices]).square().mean()
                (loss / case.world_size).backward()
                own[rank].append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            average.update(model)
            progress.steps += 1
        for each, values in zip(losses, own, strict=True):
            each.append(torch.tensor(values, dtype=torch.float64))
        saved = {name: deepcopy(p.state_dict()) for name, p in zip(names, parts, strict=True)}
    final = torch.cat([each.flatten() for each in average.weights])
    return [{**of_starts(each), "average": final} for each in losses]


MISTAKES = {
    "starts the schedule or the running average over after a restart: save_state saves what was "
    "prepared or registered, and job.scheduler and job.average are neither": (
        partial(reference, lost=["scheduler"]),
        partial(reference, lost=["average"]),
        partial(reference, lost=["scheduler", "average"]),
    ),
    "takes other samples than an uninterrupted run: set the loader's epoch, which it counts from 0 "
    "at each start (one from skip_first_batches does not count), and skip the batches that were "
    "used": (
        partial(reference, skips_used=False),
        partial(reference, epochs_from=lambda epoch: itertools.repeat(0)),
        partial(reference, epochs_from=lambda epoch: itertools.count(), skips_used=False),
    ),
    "sets the epoch only once after a restart: a loader from skip_first_batches does not count it, "
    "so set it before each epoch": partial(reference, epochs_from=itertools.repeat),
    "skips the used batches in every epoch: only the first epoch after a restart has them": partial(
        reference, skips_always=True
    ),
}
