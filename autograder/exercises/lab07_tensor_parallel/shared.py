"""Shared by the exercises on tensor parallelism: inputs, forward and backward, budgets, signs.

One process computes with whole weights; share r of its gradients is what rank r should have.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

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
from autograder.exercise.form import Sign
from autograder.exercise.signs import MistakeText, is_over, on_each_rank, raises
from autograder.exercises.common import linear_of
from shardlab import measure
from shardlab.estimate import ring_sent_bytes
from shardlab.run import Call, Run

FLOAT_BYTES = 4
NEAR = 1e-5  # additions in another order may differ by this much
BUDGET_FROM_BYTES = 2**20  # below, gloo's own messages take more than the budget's few percent
FORWARD, BACKWARD = "forward", "backward"  # the blocks that a drive measures


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> Tensor:
    return torch.from_numpy(scale * rng.standard_normal(shape)).float()


def draw_linear(rng: np.random.Generator, fan_in: int, fan_out: int) -> dict[str, Tensor]:
    """The bias is as large as x @ weight.T, so a bias that is missing or added twice shows."""
    weight = normal(rng, fan_out, fan_in, scale=fan_in**-0.5)
    return {"weight": weight, "bias": normal(rng, fan_out)}


def linear_case(
    world_size: int, batch: list[int], fan_in: int, fan_out: int, name: str = ""
) -> Case:
    """``batch``: all dimensions of x before its last one."""
    name = name or f"{world_size} ranks, {fan_in} in, {fan_out} out"
    return Case(name, world_size, {"batch": batch, "in": fan_in, "out": fan_out})


def drive_linear(subject: Any, given: Any, case: Case) -> Plain:
    return forward_and_backward(subject(linear_of(**given["whole"])), given)


def forward_and_backward(layer: Any, given: Any) -> Plain:
    """Runs the student's module; returns the shapes of its parameters, its output, all gradients.

    Runs backward only if the output has the shape of the gradient that is given for it.
    """
    parameters = dict(layer.named_parameters())
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage() for p in parameters.values()}
    alive_bytes = sum(storage.nbytes() for storage in storages.values())
    x = given["x"].requires_grad_()
    with measure(FORWARD):
        y = layer(x)
    if isinstance(y, Tensor) and y.shape == given["y.grad"].shape and y.requires_grad:
        with measure(BACKWARD):
            y.backward(given["y.grad"])
    return {
        "parameters": [[name, list(each.shape)] for name, each in sorted(parameters.items())],
        "y": y.detach() if isinstance(y, Tensor) else y,
        **{f"{name}.grad": parameter.grad for name, parameter in parameters.items()},
        "x.grad": x.grad,
        "other bytes kept alive": alive_bytes - sum(p.nbytes for p in parameters.values()),
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
    return Budget(label, used, lambda case: Limit(most_bytes(case)), heading="to collectives")


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
def wrong_parameters(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    """Not the rank's share: the whole weights, other names, or a view of the whole weights."""
    wanted, got = (dict(each["parameters"]) for each in (attempt.expected[rank], output))
    elements, of_share = (sum(map(math.prod, shapes.values())) for shapes in (got, wanted))
    if elements >= sum(tensor.numel() for tensor in attempt.inputs[rank]["whole"].values()):
        evidence = f"{elements:,} elements, its share has {of_share:,}"
        return "holds the whole weights: a rank keeps only its share", evidence
    if got.keys() != wanted.keys():
        mistake = f"should have parameters named {', '.join(wanted)}"
        return mistake, f"it has {', '.join(got) or 'none'}"
    if got != wanted or output["other bytes kept alive"] <= 0:
        return None
    return (
        "keeps the whole weights alive: its share is a view of them, and a view keeps its whole "
        "tensor alive: clone it"
    )


@on_each_rank
def no_gradient(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    """A missing gradient, if backward ran at all."""
    if getattr(output["y"], "shape", None) != attempt.expected[rank]["y"].shape:
        return None
    wanted = [key for key in attempt.expected[rank] if key.endswith(".grad")]
    left_out = [key for key in wanted if output.get(key) is None]
    return f"leaves no gradient for {left_out[0].removesuffix('.grad')}" if left_out else None


does_not_fit = raises(
    "shapes cannot be multiplied",
    "multiplies matrices whose shapes do not match: nn.Linear's weight is [out, in] and y = "
    "x @ weight.T, so columns of the product are rows of the weight",
)


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

    return (does_not_fit, wrong_parameters, *own, no_gradient, NAMED_MISTAKES, too_many_calls)
