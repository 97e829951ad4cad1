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
from autograder.exercise.signs import (
    HALF_PRECISION,
    MistakeText,
    is_over,
    on_each_call,
    on_each_rank,
)
from autograder.exercises.common import linear_of
from autograder.guest.growth import found_in_more_steps, storages
from shardlab import measure
from shardlab.errors import RankError
from shardlab.estimate import ring_sent_bytes
from shardlab.run import Call, Run

FLOAT_BYTES = 4
LEARNING_RATE = 0.1
TOLERANCE = 1e-5  # additions in another order may differ by this much
BUDGET_FROM_BYTES = 2**20  # below, gloo's own messages take more than the budget's few percent
FORWARD, BACKWARD = "forward", "backward"  # the blocks that a drive measures

Shapes = dict[str, tuple[int, ...]]  # of parameters, by name
# What a split must not keep, each with its bytes, and addresses of what the answer held before it.
Whole = tuple[list[tuple[weakref.ref[Tensor], int]], set[int]]


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> Tensor:
    return torch.from_numpy(scale * rng.standard_normal(shape)).float()


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


def gradients_of(layer: nn.Module) -> dict[str, Tensor | None]:
    return {f"{name}.grad": parameter.grad for name, parameter in layer.named_parameters()}


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
    calls = [call for call in run.calls if call.rank == rank and call.op != "barrier"]
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
        return [sum(call.bytes for call in run.calls if call.rank == rank) for rank in ranks]

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


@on_each_rank
def wrong_parameters(output: Any, given: Any, expected: Any) -> MistakeText:
    """The whole weights, other names, or the right shapes with the whole weights behind them."""
    wanted, got = expected["parameters"], output["parameters"]
    if got == shapes_of(given["whole"]):
        return "holds the whole weights: a rank keeps only its share"
    if got.keys() != wanted.keys():
        mistake = f"should have parameters named {', '.join(wanted)}"
        return mistake, f"it has {', '.join(got) or 'none'}"
    if got != wanted:
        return None
    if output["views"]:
        name = output["views"][0]
        return (
            f"keeps the whole {name} alive: its share is a view of it, and a view keeps its whole "
            "tensor alive: clone it"
        )
    if output["whole weights kept"]:
        return "keeps the layer that it was made from, with the whole weights"
    if output["keeps"]:
        mistake = (
            "keeps tensors besides its parameters, as large as other ranks' weights: hold only its "
            "own share"
        )
        return mistake, output["keeps"][0]
    return None


@on_each_rank
def other_shapes(output: Any, expected: Any) -> MistakeText:
    wanted, got = expected["parameters"], output["parameters"]
    for name, shape in wanted.items():
        if got[name] != shape:
            evidence = f"{name} is {got[name]}, expected {shape}"
            return "holds a parameter whose shape is not that of its share", evidence
    return None


@on_each_rank
def no_gradient(output: Any, expected: Any) -> MistakeText:
    """A missing gradient, if backward ran at all."""
    if getattr(output.get("y"), "shape", None) != expected["y"].shape:
        return None
    wanted = [key for key in expected if key.endswith(".grad")]
    left_out = [key for key in wanted if output.get(key) is None]
    return f"leaves no gradient for {left_out[0].removesuffix('.grad')}" if left_out else None


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


@on_each_call
def other_dtype(call: Call) -> MistakeText:
    if call.dtype not in HALF_PRECISION:
        return None
    return f"passes {call.dtype} to a collective: half precision loses digits of a sum"


def does_not_multiply(cuts_x: str) -> Sign:
    """torch's error for x, or a rank's part of x (``cuts_x``), times its share of the weight."""

    def sign(attempt: Attempt) -> Finding | None:
        error = attempt.error
        if not isinstance(error, RankError):
            return None
        x, n = attempt.inputs[error.rank]["x"], attempt.case.world_size
        rows, width = x.shape[:-1].numel(), x.shape[-1]
        fan_out, fan_in = attempt.expected[error.rank]["parameters"]["weight"]
        parts = [len(part) for part in torch.arange(width).chunk(n)]
        own = (parts + [0] * n)[error.rank]
        for mistake, sizes in {
            cuts_x: f"({rows}x{own} and {fan_in}x{fan_out})",
            "multiplies by the weight as it is: nn.Linear's weight is [out, in], so transpose it": (
                f"({rows}x{width} and {fan_out}x{fan_in})"
            ),
        }.items():
            if f"mat1 and mat2 shapes cannot be multiplied {sizes}" in error.message:
                return Finding(f"rank {error.rank}", mistake, f"{sizes}, {error.source}")
        return None

    return sign


def signs(*own: Sign, forward: str, backward: str) -> tuple[Sign, ...]:
    """``forward``, ``backward``: the messages for too many collectives."""

    def too_many_calls(attempt: Attempt) -> Finding | None:
        for block, mistake in ((FORWARD, forward), (BACKWARD, backward)):
            for rank in is_over(attempt, f"in {block}"):
                assert attempt.run is not None
                made = collectives_in(attempt.run, rank, block)
                # The student's own calls: our replacements of earlier answers are not in a cell.
                own = [f"{call.op}, {call.source}" for call in made if "cell" in call.source]
                return Finding(f"rank {rank}", mistake, own[-1] if own else made[-1].op)
        return None

    before = (wrong_parameters, *own, other_dtype, no_gradient)
    return (*before, NAMED_MISTAKES, other_shapes, too_many_calls, other_later_passes)
