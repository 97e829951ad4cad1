"""The exact accuracy of an evaluation whose loader repeats samples to fill the last batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from autograder.exercise import Attempt, Case, Finding, OnRanks, Plain
from autograder.exercise.signs import MistakeText, on_each_rank
from autograder.exercises.lab11_deepspeed_accelerate.accelerators import as_number, new_accelerator
from shardlab.errors import DeadlockError
from shardlab.ranks.explain import each_rank_text

FEATURES, CLASSES = 6, 5


class Stream(IterableDataset[Any]):
    """Samples without a length."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return zip(*self.tensors, strict=True)


def draw_inputs(case: Case, rng: np.random.Generator) -> Plain:
    """The model is right about the first samples, which a loader repeats, and about half of the
    others."""
    samples, repeated = case.params["samples"], repeats(case)
    weight = torch.from_numpy(rng.standard_normal((CLASSES, FEATURES))).float()
    inputs = torch.from_numpy(rng.standard_normal((samples, FEATURES))).float()
    wrong = torch.from_numpy(rng.random(samples) < 0.5)
    wrong[:repeated] = False
    wrong[-1] = True
    targets = (inputs @ weight.T).argmax(dim=1)
    return {"weight": weight, "inputs": inputs, "targets": (targets + wrong) % CLASSES}


def repeats(case: Case) -> int:
    """Samples that the loader adds, so that all ranks have the same number of full batches."""
    return int(-case.params["samples"] % (case.world_size * case.params["batch"]))


def drive(subject: Any, given: Any, case: Case) -> Plain:
    accelerator = new_accelerator(dispatch_batches=False)
    model = nn.Linear(FEATURES, CLASSES, bias=False)
    model.weight.data = given["weight"]
    tensors = torch.arange(case.params["samples"]), given["inputs"], given["targets"]
    dataset = (Stream if case.params["stream"] else TensorDataset)(*tensors)
    loader = DataLoader(dataset, batch_size=case.params["batch"])
    model, loader = accelerator.prepare(model, loader)
    evaluated = []

    def count(_: nn.Module, inputs: Any) -> None:
        evaluated.append(len(inputs[0]))

    accelerator.unwrap_model(model).register_forward_pre_hook(count)
    accuracy = as_number(subject(accelerator, model.eval(), loader))
    return {"accuracy": accuracy, "evaluated": sum(evaluated)}


@on_each_rank
def returns_no_number(output: Any) -> MistakeText:
    if isinstance(kind := output["accuracy"], str):
        return "should return the accuracy, one number, on every rank", kind
    return None


@on_each_rank
def evaluates_too_many(output: Any, case: Case) -> MistakeText:
    own = (case.params["samples"] + repeats(case)) // case.world_size
    if output["evaluated"] > own:
        mistake = (
            "evaluates samples of other ranks: each rank runs the model only on its own batches"
        )
        return mistake, f"{output['evaluated']} samples, {own} are its own"
    return None


def gathers_on_some_ranks(attempt: Attempt) -> Finding | None:
    error = attempt.error
    table = error.table if isinstance(error, DeadlockError) else ()
    gathering = [row.rank for row in table if row.call.startswith("all_gather")]
    if not gathering or len(gathering) == attempt.case.world_size:
        return None
    mistake = (
        "gathers answers while other ranks do not: every rank runs the loop over its own batches, "
        "not the main process alone"
    )
    return Finding(each_rank_text(gathering), mistake, who_if_hidden="a rank")


EXERCISE = OnRanks(
    points=3,
    cases=(
        Case("4 ranks, 10 samples", 4, {"samples": 10, "batch": 1, "stream": False}),
        Case("4 ranks, a stream of 10 samples", 4, {"samples": 10, "batch": 1, "stream": True}),
        Case("2 ranks, a stream of 8 in twos", 2, {"samples": 8, "batch": 2, "stream": True}),
    ),
    inputs=draw_inputs,
    drive=drive,
    tolerance=1e-6,
    rules=(returns_no_number, evaluates_too_many),
    signs=(gathers_on_some_ranks,),
)
