"""The right numbers are counted in a real step of the lab's model; only mistakes are formulas."""

import itertools
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autograder.exercise import Case, Plain, questions
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab01_one_device.hidden.shared import NOT_SHARDED
from autograder.exercises.lab01_one_device.step_bytes import CHOICES, setting
from shardlab.models.bigram import train_one_step
from shardlab.models.paper_layer import saved_bytes

CASES = (
    questions("every choice with a ReLU"),
    questions("every choice with a GELU"),
    questions("one layer, Adam", setting(width=30, vocabulary=70, layers=1, batch_size=31)),
    questions("bf16, tied, no layer", setting(layers=0, tied=True, precision="bf16")),
)
BOUNDARIES = NOT_SHARDED | {
    "one rank": "fp32, Adam",
    "no layer": "tied embeddings, momentum; no layer",
    "no state": "a larger batch, plain SGD",
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer("(width * width + width)", "width * (width + 1)", "the same number"),
)


def draw(case: Case, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Biases exceed the tolerance, and Adam's step counters stay well below it: with width 12,
    6 layers and a tied matrix of 24 tokens, the counters would be 0.53 %."""
    choices = CHOICES | {"activation": ("relu" if "ReLU" in case.name else "gelu",)}
    return [
        setting(
            width=(width := int(rng.integers(16, 33))),
            vocabulary=width * 2 + int(rng.integers(0, width)),
            layers=int(rng.integers(2, 7)),
            batch_size=int(rng.integers(8, 200)),
            **dict(zip(choices, chosen, strict=True)),
        )
        for chosen in itertools.product(*choices.values())
    ]


def right(**asked: Any) -> dict[str, int]:
    """Bytes by category, counted in one step of a real BigramModel; each storage counts once."""
    model, optimizer = train_one_step(**asked)
    batch = torch.zeros(2, asked["batch_size"], dtype=torch.int64)
    weights = list(model.parameters())
    masters = [master for group in optimizer.param_groups for master in group["params"]]
    states = [state for states in optimizer.state.values() for state in states.values()]
    return {
        "parameters": storage_bytes(weights),
        "gradients": storage_bytes(weight.grad for weight in weights),
        "optimizer": storage_bytes(states) + storage_bytes(masters, without=weights),
        "activations": saved_bytes(model, *batch) - batch.nbytes,
    }


def storage_bytes(tensors: Iterable[Any], without: Iterable[Tensor] = ()) -> int:
    own = {tensor.untyped_storage().data_ptr() for tensor in without}
    storages = [tensor.untyped_storage() for tensor in tensors if isinstance(tensor, Tensor)]
    by_address = {storage.data_ptr(): storage.nbytes() for storage in storages}
    return sum(size for address, size in by_address.items() if address not in own)


def formulas(asked: dict[str, Any], changes: dict[str, Any]) -> dict[str, float]:
    """The four numbers; ``changes`` replaces the values of some of these names by wrong ones."""
    wide = asked["precision"] == "fp32"
    plain = {"matrices": 1 if asked["tied"] else 2, "biases": 1, "grows": False}
    plain |= {"number": 4 if wide else 2, "master": 0 if wide else 4, "extra": 0}  # bytes of one
    plain |= {"states": {"sgd": 0, "momentum": 1, "adam": 2}[asked["optimizer"]], "state": 4}
    plain |= {"relu": 1, "gelu": 2, "first": 1, "logits": 1, "rows": asked["batch_size"]}
    s = SimpleNamespace(**{**asked, **plain, **changes})
    elements = s.matrices * s.vocabulary * s.width + s.layers * (s.width + s.biases) * s.width
    elements *= s.batch_size if s.grows else 1
    kept = s.batch_size * (s.first + s.layers * getattr(s, s.activation)) * s.width
    kept += s.rows * s.logits * s.vocabulary
    return {
        "parameters": elements * (s.number + s.extra),
        "gradients": elements * s.number,
        "optimizer": elements * (s.master + s.states * s.state),
        "activations": kept * s.number,
    }


def wrong(category: str, changes: dict[str, Any]) -> Callable[..., Plain]:
    """``changes`` that name part of the setting only restrict the mistake to such settings."""

    def formula(**asked: Any) -> Plain:
        if any(asked.get(name, value) != value for name, value in changes.items()):
            return None
        return {category: formulas(asked, changes)[category]}

    return formula


def states(*numbers: int, optimizer: str) -> list[dict[str, Any]]:
    return [{"states": number, "optimizer": optimizer} for number in numbers]


BF16 = {"precision": "bf16"}
# If two mistakes agree in a case, the one that is wrong in fewer cases comes first: it does not
# match in the other cases, so the second one is named there.
CHANGES: dict[tuple[str, ...], dict[str, list[dict[str, Any]]]] = {
    ("parameters", "gradients", "optimizer"): {
        "miscounts embedding and head: they are one matrix if tied, else two": [
            {"matrices": 2},
            {"matrices": 1},
        ],
        "forgets the biases: a Linear has one more number for each output": [{"biases": 0}],
        "grows with the batch: only activations do": [{"grows": True}],
    },
    ("parameters", "gradients", "activations"): {
        "takes a wrong size of a number: 4 bytes in fp32, 2 in bf16": [{"number": 1}, {"number": 4}]
    },
    ("parameters",): {
        "counts the fp32 masters: they belong to 'optimizer'": [{"extra": 4, **BF16}, {"extra": 4}]
    },
    ("optimizer",): {  # with Adam, the first two give the same number of bytes
        "forgets the fp32 masters, or counts states in bf16: each bf16 parameter has a master and "
        "its states, all in fp32": [
            {"master": 0},
            {"state": 2, **BF16},
            {"master": 0, "state": 2, **BF16},
        ],
        "miscounts the states: plain SGD keeps none, momentum one for each parameter": [
            *states(1, 2, 3, optimizer="sgd"),
            *states(0, 2, 3, optimizer="momentum"),
        ],
        "miscounts the states: Adam keeps two for each parameter, a mean of its gradients and a "
        "mean of their squares": states(0, 1, 3, optimizer="adam"),
        "counts masters in fp32: there the parameters are their own": [
            {"master": 4, "precision": "fp32"}
        ],
    },
    ("activations",): {
        "miscounts what a layer saves: a ReLU and the next layer save one tensor, and with a GELU "
        "it is two, its input and its output": [{"gelu": 1}, {"relu": 2}],
        "forgets what cross_entropy saves: V numbers for each token": [{"logits": 0}],
        "counts fp32 log-probabilities: with bf16 they take 2 bytes each": [{"logits": 2, **BF16}],
        "counts the logits: cross_entropy saves the log-probabilities only": [{"logits": 2}],
        "counts cross_entropy's V numbers once: it saves V for each token": [{"rows": 1}],
        "forgets the input of the first linear layer, or counts an input twice: D for each token": [
            {"first": 0},
            {"first": 2},
        ],
    },
}
MISTAKES = {
    message.replace(":", f" in {category!r}:", 1): tuple(wrong(category, each) for each in changes)
    for categories, mistakes in CHANGES.items()
    for message, changes in mistakes.items()
    for category in categories
}
