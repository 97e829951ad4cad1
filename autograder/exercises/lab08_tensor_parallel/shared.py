"""Shared by the exercises on tensor parallelism: inputs, forward and backward, budgets, signs.

One process computes with whole weights; share r of its gradients is what rank r should have.
"""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autograder.exercise import (
    NAMED_MISTAKES,
    Attempt,
    Budget,
    Case,
    Finding,
    Limit,
    Plain,
    sent_bytes,
)
from autograder.exercise.compare import difference, equal, with_key
from autograder.exercise.form import Sign
from autograder.exercise.signs import MistakeText, on_each_rank
from autograder.exercises.common import BUDGET_FROM_BYTES, FLOAT_BYTES, linear_of, normal
from autograder.guest.growth import found_in_more_steps, storages
from shardlab import measure
from shardlab.estimate import ring_sent_bytes
from shardlab.run import Call, Run

LEARNING_RATE = 0.1
TOLERANCE = 1e-5  # additions in another order may differ by this much
FORWARD, BACKWARD = "forward", "backward"  # the blocks that a drive measures

Shapes = dict[str, tuple[int, ...]]  # of parameters, by name
# What a split must not keep, each with its bytes, and addresses of what the answer held before it.
Whole = tuple[list[tuple[weakref.ref[Tensor], int]], set[int]]


def draw_linear(rng: np.random.Generator, fan_in: int, fan_out: int) -> dict[str, Tensor]:
    """The bias is as large as x @ weight.T, so a bias that is missing or added twice shows."""
    weight = normal(rng, fan_out, fan_in, scale=fan_in**-0.5)
    return {"weight": weight, "bias": normal(rng, fan_out)}


def linear_case(
    world_size: int, batch: list[int], fan_in: int, fan_out: int, name: str = "", **more: int
) -> Case:
    """``batch``: all dimensions of x before its last one.  ``more_steps``: passes that follow the
    first one, see `after_an_update`."""
    name = name or f"{world_size} ranks, {fan_in} in, {fan_out} out"
    return Case(name, world_size, {"batch": batch, "in": fan_in, "out": fan_out, **more})


# {parameter: the dimension along which it is split}; all others are whole on every rank
Split = Mapping[str, int]


def drive_linear(split: Split, subject: Any, given: Any, case: Case) -> Plain:
    linear = linear_of(**given["whole"])
    weights = whole_weights(linear, subject)
    layer = subject(linear)
    del linear
    share = share_of(given["whole"], split, case)
    found = forward_and_backward(layer, given, weights, share)
    if "y" in found:
        found["bias"] = layer.bias.detach().clone()
    if "more_steps" in case.params and found.get("x.grad") is not None:
        found |= after_an_update(layer, given, case.params["more_steps"])
    return found


def after_an_update(layer: nn.Module, given: Any, passes: int) -> dict[str, Plain]:
    """Updates the weights once. Then, in each pass, x goes through the layer twice, with different
    gradients.  Returns the output and the gradients of the last pass, and what grows."""
    later: dict[str, Plain] = {}
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.grad is not None:
                parameter.sub_(LEARNING_RATE * parameter.grad)

    def one_pass() -> None:
        layer.zero_grad()  # earlier gradients, which a rank returns, stay as they are
        x, y_grad = given["x"].detach().requires_grad_(), given["y.grad"]
        y, again = layer(x), layer(x)
        torch.autograd.backward((y, again), (y_grad, 2 * y_grad))
        later.update({"y": again.detach(), "x.grad": x.grad}, **gradients_of(layer))

    return {"grows": found_in_more_steps({"self": layer}, one_pass, passes), "later": later}


def gradients_of(layer: nn.Module) -> dict[str, Tensor]:
    """A gradient that is missing is 0, and differs from the right one."""
    return {
        f"{name}.grad": torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for name, parameter in layer.named_parameters()
    }


def share_of(whole: Mapping[str, Tensor], split: Split, case: Case) -> Shapes:
    """The shapes of a rank's share of the whole weights."""
    shapes = shapes_of(whole)
    for name, dim in split.items():
        sizes = list(shapes[name])
        sizes[dim] //= case.world_size
        shapes[name] = tuple(sizes)
    return shapes


def shapes_of(parameters: Mapping[str, Tensor]) -> Shapes:
    return {name: tuple(each.shape) for name, each in sorted(parameters.items())}


def whole_weights(module: nn.Module, answer: Any) -> Whole:
    """Of its linear layers. Not the biases: a `RowLinear` may keep the one it was given."""
    weights = [each for name, each in module.named_parameters() if "weight" in name]
    held = {address for _, address, _ in storages({"answer": answer})}
    return [(weakref.ref(each), each.nbytes) for each in weights], held


def views_of_more(parameters: Mapping[str, Tensor]) -> list[str]:
    """Names of parameters that keep memory alive that is no parameter's."""
    sizes = {
        p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in parameters.values()
    }
    if sum(sizes.values()) == sum(p.nbytes for p in parameters.values()):
        return []
    return [name for name, p in parameters.items() if p.untyped_storage().nbytes() > p.nbytes]


def kept_besides(layer: nn.Module, whole: Any, share: Shapes, held: set[int]) -> list[str]:
    """Where ``layer`` has memory besides its parameters, the largest first, if it is as much as the
    other ranks' part of a weight matrix."""
    known = held | {p.untyped_storage().data_ptr() for p in layer.parameters()}
    more = [(size, name) for name, at, size in storages({"self": layer}) if at not in known]
    of_others = [
        whole[name].nbytes - FLOAT_BYTES * math.prod(shape)
        for name, shape in share.items()
        if "weight" in name
    ]
    if sum(size for size, _ in more) < min(of_others):
        return []
    return [f"{name}: {size:,} B" for size, name in sorted(more)[::-1]]


def forward_and_backward(
    layer: Any,
    given: Any,
    whole: Whole = ([], set()),
    share: Shapes | None = None,
) -> Plain:
    """Runs the student's module; returns the shapes of its parameters, its output, all gradients.

    Of parameters that are not a ``share`` it returns the shapes only: they may not fit x.

    x is not contiguous, and it is used again after the layer, as in a residual connection: its
    gradient is the layer's plus ``x`` itself.

    Runs backward only if the output has the shape of the gradient that is given for it.
    ``whole``: weights that the layer was made from, and must not keep.
    """
    parameters = dict(layer.named_parameters())
    weights, held = whole
    if any(weight() is not None for weight, _ in weights):
        gc.collect()
    holds = {
        "parameters": shapes_of(parameters),
        "views": views_of_more(parameters),
        "whole weights kept": sum(
            getattr(weight(), "nbytes", 0) == size for weight, size in weights
        ),
        "keeps": [] if share is None else kept_besides(layer, given["whole"], share, held),
    }
    if share is not None and holds["parameters"] != share:
        return holds
    x = given["x"].requires_grad_()
    again = x.mT.contiguous().mT
    with measure(FORWARD):
        y = layer(again)
    if isinstance(y, Tensor) and y.shape == given["y.grad"].shape and y.requires_grad:
        with measure(BACKWARD):
            torch.autograd.backward((y, again), (given["y.grad"], x.detach().clone()))
    return {
        **holds,
        "y": y.detach() if isinstance(y, Tensor) else y,
        **gradients_of(layer),
        "x.grad": x.grad,
    }


# ---- budgets ------------------------------------------------------------------------------------


def collectives_in(run: Run, rank: int, block: str) -> list[Call]:
    """The collectives that a rank started within a measured block."""
    spans = [(b.start_s, b.end_s) for b in run.traffic.blocks if (b.label, b.rank) == (block, rank)]
    calls = [call for call in run.calls_of(rank) if call.op != "barrier"]
    return [call for call in calls if any(start <= call.start_s <= end for start, end in spans)]


def counted(block: str, calls: int) -> Budget:
    """Exactly ``calls`` collectives in a block, of any kind."""
    return Budget(
        f"{calls} all-reduce{'' if calls == 1 else 's'} in {block}",
        used=lambda run: [len(collectives_in(run, rank, block)) for rank in range(run.world_size)],
        limit=lambda case: Limit(calls, calls),
        heading=f"in {block}",
        unit="calls",
    )


def passed_to_collectives(what: str, most_bytes: Callable[[Case], int]) -> Budget:
    """Bytes of all tensors that a rank passes to collectives."""

    def used(run: Run) -> list[int]:
        ranks = range(run.world_size)
        return [sum(call.bytes for call in run.calls_of(rank)) for rank in ranks]

    label = f"passes {what} to collectives"

    def limit(case: Case) -> Limit:
        return Limit(most_bytes(case) * (1 + 2 * case.params.get("more_steps", 0)))

    return Budget(label, used, limit, heading="to collectives")


def one_all_reduce(block: str, tensor: str, width: str) -> tuple[Budget, ...]:
    """Budgets for one all-reduce of one tensor, whose last dimension is ``width``: in or out."""

    def tensor_bytes(case: Case) -> int:
        return FLOAT_BYTES * math.prod(case.params["batch"]) * case.params[width]

    def wire_limit(case: Case) -> Limit | None:
        if (size := tensor_bytes(case)) < BUDGET_FROM_BYTES:
            return None
        ideal = ring_sent_bytes(size, case.world_size)
        return Limit(1.02 * ideal, ideal)

    return (
        counted(FORWARD, int(block == FORWARD)),
        counted(BACKWARD, int(block == BACKWARD)),
        passed_to_collectives(f"only {tensor}", tensor_bytes),
        Budget("sends ≤ 1.02 × ideal bytes per rank", sent_bytes, wire_limit),
    )


# ---- signs --------------------------------------------------------------------------------------


def signs(share: str) -> tuple[Sign, ...]:
    """``share``: why a rank's parameters have the shapes that they should have."""

    @on_each_rank
    def wrong_parameters(output: Any, given: Any, expected: Any) -> MistakeText:
        wanted, got = expected["parameters"], output["parameters"]
        if got == shapes_of(given["whole"]):
            return "holds the whole weights: a rank keeps only its share"
        if got.keys() != wanted.keys():
            mistake = f"should have parameters named {', '.join(wanted)}"
            return mistake, f"it has {', '.join(got) or 'none'}"
        for name, shape in wanted.items():
            if got[name] != shape:
                evidence = f"{name} is {got[name]}, expected {shape}"
                return f"holds a parameter whose shape is not that of its share: {share}", evidence
        if output["views"]:
            return (
                f"keeps the whole {output['views'][0]} alive: its share is a view of it, and a "
                "view keeps its whole tensor alive: clone it"
            )
        if output["whole weights kept"] or output["keeps"]:
            mistake = "keeps other ranks' weights besides its parameters: hold only its own share"
            return mistake, next(iter(output["keeps"]), "")
        return None

    return wrong_parameters, NAMED_MISTAKES, other_later_passes


def other_later_passes(attempt: Attempt) -> Finding | None:
    """Right in the first pass on all ranks, but not after an update."""
    if attempt.error is not None:
        return None
    pairs = [*zip(attempt.expected, attempt.outputs, strict=True)]
    for rank, (wanted, got) in enumerate(pairs):
        later = wanted.get("later"), got.get("later")
        found = difference(*later, TOLERANCE) if all(later) else None
        if found and all(equal({**w, "later": {}}, g, TOLERANCE) for w, g in pairs):
            mistake = (
                "is right in its first pass, but not after an update of the weights, when x goes "
                "through it twice: compute each y and each gradient anew"
            )
            return Finding(f"rank {rank}", mistake, with_key(*found))
    return None
