"""The exact accuracy of an evaluation whose loader repeats samples to fill the last batch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from autograder.exercise import Case, OnRanks, Plain
from autograder.exercise.signs import MistakeText, on_each_rank
from autograder.exercises.common import normal
from autograder.exercises.lab13_accelerate.shared import as_number, new_accelerator

FEATURES, CLASSES = 6, 5
NOBODY = -1  # the target of another rank's sample


class Stream(IterableDataset[Any]):
    """Samples without a length."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return zip(*self.tensors, strict=True)


def draw_inputs(case: Case, rng: np.random.Generator) -> list[Plain]:
    """Of each rank: its own samples, and NaN in place of the others', so that no rank can evaluate
    the dataset alone.

    The model is right about the first samples, which a loader repeats, and about half of the
    others.
    """
    samples, repeated = case.params["samples"], repeats(case)
    weight, inputs = normal(rng, CLASSES, FEATURES), normal(rng, samples, FEATURES)
    wrong = torch.from_numpy(rng.random(samples) < 0.5)
    wrong[:repeated] = False
    wrong[-1] = True
    targets = ((inputs @ weight.T).argmax(dim=1) + wrong) % CLASSES

    def of_rank(rank: int) -> Plain:
        is_own = own_samples(case, rank)
        own_inputs = inputs.masked_fill(~is_own[:, None], math.nan)
        own_targets = targets.masked_fill(~is_own, NOBODY)
        return {"weight": weight, "inputs": own_inputs, "targets": own_targets}

    return [of_rank(rank) for rank in range(case.world_size)]


def own_samples(case: Case, rank: int) -> Tensor:
    """[samples], bool: those in a rank's batches, which all ranks get in turn."""
    positions = torch.arange(case.params["samples"] + repeats(case))
    own = positions[positions // case.params["batch"] % case.world_size == rank]
    return torch.zeros(case.params["samples"], dtype=torch.bool).index_fill_(
        0, own % case.params["samples"], True
    )


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
    evaluated, modes = [], []

    def count(module: nn.Module, inputs: Any) -> None:
        evaluated.append(len(inputs[0]))
        modes.append(module.training)

    accelerator.unwrap_model(model).register_forward_pre_hook(count)
    accuracy = as_number(subject(accelerator, model.eval(), loader))
    trains = any(modes) or model.training
    return {"accuracy": accuracy, "evaluated": sum(evaluated), "trains": trains}


@on_each_rank
def evaluates_too_many(output: Any, case: Case) -> MistakeText:
    own = (case.params["samples"] + repeats(case)) // case.world_size
    if output["evaluated"] <= own:
        return None
    mistake = "evaluates samples of other ranks: each rank runs the model only on its own batches"
    return mistake, f"{output['evaluated']} samples, {own} are its own"


@on_each_rank
def trains(output: Any) -> MistakeText:
    if not output["trains"]:
        return None
    return (
        "switches the model to training mode, which changes dropout and BatchNorm: leave it alone"
    )


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
    rules=(evaluates_too_many, trains),
)
