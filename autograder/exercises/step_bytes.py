"""What `step_bytes` can get wrong, by category, each with the number that it leads to.

The right numbers are counted in a real step of the lab's model.  Only to name a mistake are there
formulas here: n parameters in all, V vocabulary, D width, L layers, B batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autograder.exercise import Attempt, Case, Finding, Plain
from autograder.exercise.compare import equal
from autograder.exercise.kept_back import kept_back, never
from autograder.guest.library import answers_of
from shardlab.reader import train_one_step

CATEGORIES = ("parameters", "gradients", "optimizer", "activations")
TOLERANCE = 0.005  # single numbers, such as Adam's count of steps, are kept as well
STATES = {"sgd": 0, "momentum": 1, "adam": 2}

Setting = Mapping[str, Any]
Wrong = list[tuple[float, str]]  # a number of bytes, and the mistake that leads to it


def setting(**changes: Any) -> dict[str, Any]:
    plain = {
        "vocabulary": 64,
        "width": 24,
        "layers": 3,
        "batch_size": 50,
        "activation": "relu",
        "tied": False,
        "precision": "fp32",
        "optimizer": "adam",
    }
    return plain | changes


def case_of(name: str, hidden: bool = False, **changes: Any) -> Case:
    return Case(name, 1, {"settings": [setting(**changes)]}, hidden)


def draw_settings(case: Case, rng: np.random.Generator) -> list[Plain]:
    """Those the case names, or `draws` of them."""
    if "settings" in case.params:
        return [case.params["settings"]]
    return [[random_setting(rng) for _ in range(case.params["draws"])]]


@kept_back(never)
def random_setting(rng: np.random.Generator) -> dict[str, Any]:
    """One in which biases are more than the tolerance, and Adam's counts of steps well below it.

    Of width 12, with the tied matrix of 24 tokens and 6 layers, those counts are 0.53 %.
    """
    width = int(rng.integers(16, 33))
    return setting(
        vocabulary=width * 2 + int(rng.integers(0, width)),
        width=width,
        layers=int(rng.integers(2, 7)),
        batch_size=int(rng.integers(8, 200)),
        activation=str(rng.choice(["relu", "gelu"])),
        tied=bool(rng.integers(2)),
        precision=str(rng.choice(["fp32", "bf16"])),
        optimizer=str(rng.choice(list(STATES))),
    )


def drive_step_bytes(subject: Callable[..., Any], settings: list[Setting], case: Case) -> Plain:
    return answers_of(subject, settings)


def expect_step_bytes(case: Case, inputs: Any) -> list[Plain]:
    return [[counted_bytes(**setting) for setting in inputs[0]]]


def counted_bytes(**setting: Any) -> dict[str, int]:
    """Bytes by category, counted in one step of a real Reader, here and now.

    Each storage counts once.  Activations are what autograd keeps for the backward pass, without
    the weights and the batch.
    """
    kept: dict[int, int] = {}  # by address: all of these live until the backward pass

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes() if tensor.is_floating_point() else 0
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model, optimizer = train_one_step(**setting)
    weights = list(model.parameters())
    masters = [master for group in optimizer.param_groups for master in group["params"]]
    states = [state for states in optimizer.state.values() for state in states.values()]
    own = {weight.untyped_storage().data_ptr() for weight in weights}
    return {
        "parameters": storage_bytes(weights),
        "gradients": storage_bytes([weight.grad for weight in weights]),
        "optimizer": storage_bytes(states) + storage_bytes(masters, without=own),
        "activations": sum(size for at, size in kept.items() if at not in own),
    }


def storage_bytes(tensors: Iterable[Any], without: Iterable[int] = ()) -> int:
    storages = [t.untyped_storage() for t in tensors if isinstance(t, Tensor)]
    by_address = {storage.data_ptr(): storage.nbytes() for storage in storages}
    return sum(size for at, size in by_address.items() if at not in set(without))


def wrong_bytes(attempt: Attempt) -> Finding | None:
    """Names the first number that a known mistake leads to."""
    if attempt.error:
        return None
    for given, wanted, got in zip(
        attempt.inputs[0], attempt.expected[0], attempt.outputs[0], strict=True
    ):
        for category in CATEGORIES:
            if not isinstance(got, dict) or category not in got:
                return None  # the comparison says it
            if equal(wanted[category], got[category], TOLERANCE):
                continue
            mistakes = [
                mistake
                for number, mistake in slips(category, given)
                if equal(number, got[category], TOLERANCE)
            ]
            if mistakes:  # more than one may lead to the same number
                evidence = f"{got[category]:,.0f} bytes, counted: {wanted[category]:,}"
                said = f"{'; or '.join(dict.fromkeys(mistakes))} (in {category!r})"
                return Finding("step_bytes", said, evidence, anyone="step_bytes")
    return None


@kept_back(lambda case, inputs: [(name, given) for name in CATEGORIES for given in inputs[0]])
def slips(category: str, given: Setting) -> Wrong:
    return WRONG[category](given)


def elements(given: Setting, tied: bool | None = None, biases: bool = True) -> int:
    """Of all parameters. V·D, or twice that where the head has its own, and L·(D² + D)."""
    vocabulary, width = given["vocabulary"], given["width"]
    matrices = 1 if (given["tied"] if tied is None else tied) else 2
    return int(
        matrices * vocabulary * width + given["layers"] * (width**2 + (width if biases else 0))
    )


def element_bytes(given: Setting) -> int:
    return 4 if given["precision"] == "fp32" else 2


def wrong_counts(given: Setting, each: float) -> Wrong:
    """Mistakes in the number of parameters, whatever ``each`` bytes are counted for one."""
    other_tied = elements(given, tied=not given["tied"]) * each
    if given["tied"]:
        tied = "counts the tied matrix twice: embedding and head are one tensor"
    else:
        tied = "counts embedding and head as one matrix: here they are two"
    without = "forgets the biases: a Linear has one number more for each output"
    grows = "grows with the batch: only activations do"
    return [
        (other_tied, tied),
        (elements(given, biases=False) * each, without),
        (elements(given) * each * given["batch_size"], grows),
    ]


def wrong_parameters(given: Setting) -> Wrong:
    n, each = elements(given), element_bytes(given)
    return [
        *wrong_counts(given, each),
        (n, "counts elements: the answer is in bytes, 4 for each in fp32 and 2 in bf16"),
        (n * (each + 4), "counts the fp32 masters: they are the optimizer's"),
        (n * 4, "counts 4 bytes for each number: bf16 has 2"),
    ]


def wrong_gradients(given: Setting) -> Wrong:
    n, each = elements(given), element_bytes(given)
    return [
        *wrong_counts(given, each),
        (n, "counts elements: the answer is in bytes, 4 for each in fp32 and 2 in bf16"),
        (n * 4, "counts 4 bytes for each number: the gradients of bf16 weights are bf16 too"),
        (0, "counts nothing: every parameter has a gradient of its own size"),
    ]


def wrong_optimizer(given: Setting) -> Wrong:
    n, states = elements(given), STATES[given["optimizer"]]
    master = 0 if given["precision"] == "fp32" else 4
    own_states = {
        0: "counts a state for plain SGD: it keeps none",
        1: "counts another number of states: momentum is one for each parameter",
        2: "counts another number of states: Adam keeps two for each parameter, a mean of its "
        "gradients and a mean of their squares",
    }[states]
    always = [
        *(wrong_counts(given, master + 4 * states) if master + states else []),
        *[(n * (master + 4 * k), own_states) for k in range(4) if k != states],
    ]
    if not master:
        needless = "counts masters in fp32: there the parameters need no other copy"
        return [*always, (n * (4 + 4 * states), needless)]
    return [
        *always,
        (n * 4 * states, "forgets the fp32 masters: 4 bytes for each parameter in bf16"),
        (n * (4 + 2 * states), "counts states in bf16: they are fp32, as the masters are"),
        (n * 2 * states, "counts states in bf16 and no masters: both are there, in fp32"),
    ]


def wrong_activations(given: Setting) -> Wrong:
    width, layers, vocabulary = given["width"], given["layers"], given["vocabulary"]
    each, batch = element_bytes(given), given["batch_size"]
    gelu = given["activation"] == "gelu"
    inner = layers * (2 if gelu else 1)
    right = (1 + inner) * width + vocabulary  # numbers for each token of the batch
    if gelu:
        other = (
            "counts one tensor for a GELU layer: GELU keeps its input, the next layer its output"
        )
    else:
        other = "counts two tensors for a ReLU layer: ReLU and the next layer keep the same one"
    other_right = right + (-1 if gelu else 1) * layers * width
    no_last = "forgets what cross_entropy keeps: a number for each token and each vocabulary entry"
    no_first = "forgets the embedding's output: the next layer keeps its input"
    return [
        (right * each, "does not grow with the batch: each token has its own activations"),
        (other_right * each * batch, other),
        ((right - vocabulary) * each * batch, no_last),
        ((right - width) * each * batch, no_first),
        (right * 4 * batch, "counts 4 bytes for each number: bf16 has 2"),
        (right * batch, "counts elements: the answer is in bytes"),
        ((right + vocabulary) * each * batch, "counts the logits too: nobody keeps them"),
    ]


WRONG = {
    "parameters": wrong_parameters,
    "gradients": wrong_gradients,
    "optimizer": wrong_optimizer,
    "activations": wrong_activations,
}
