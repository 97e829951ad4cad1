"""Choose the units of fully_shard: as few as possible, none larger than a budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from autograder.exercise import Attempt, Budget, Case, Limit, OnRanks, Plain, sent_bytes
from autograder.exercise.budget import from_outputs
from autograder.exercise.signs import MistakeText, on_each_rank, over_budget, raises
from autograder.exercises.common import BUDGET_FROM_BYTES, FLOAT_BYTES
from autograder.exercises.lab04_zero.shared import TOLERANCE, call_in_backward, loss_of
from autograder.exercises.lab05_fsdp import nested_model
from autograder.exercises.lab05_fsdp.nested_model import (
    GATHER,
    SCATTER,
    local,
    steps,
    whole_parameters,
)
from shardlab.run import Run

STEPS = 2
LEARNING_RATE = 0.1
OPTIONS = "momentum", "dampening", "weight_decay", "nesterov", "maximize"
LARGEST, WHOLE, COLLECTIVES = "largest unit", "whole at once", "collectives"


def watch_whole(model: nn.Module) -> list[int]:
    """Bytes of the parameters that are whole, when forward or backward reaches each layer."""
    seen: list[int] = []

    def look(*_: Any) -> None:
        seen.append(sum(each.nbytes for each in whole_parameters(model).values()))

    for module in model.modules():
        # Layers; fully_shard's own hooks run before these.
        if [*module.parameters()] and not [*module.children()]:
            module.register_forward_pre_hook(look)
            call_in_backward(module, look)
    return seen


def largest_unit(model: nn.Module) -> int:
    """Bytes of the parameters that it gathers, without those of the units in it."""
    sizes = Counter[nn.Module | None]()

    def visit(module: nn.Module, unit: nn.Module | None) -> None:
        unit = module if isinstance(module, FSDPModule) else unit
        sharded = (p for p in module.parameters(recurse=False) if isinstance(p, DTensor))
        sizes[unit] += sum(FLOAT_BYTES * parameter.numel() for parameter in sharded)
        for child in module.children():
            visit(child, unit)

    visit(model, None)
    return max(sizes.values())


def drive(subject: Any, given: Any, case: Case) -> Plain:
    model = nested_model.nested_model(case.params, given["parameters"])
    optimizer = subject(model, case.params["unit_bytes"])
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"wrap returns {optimizer!r:.50}, not an optimizer of torch.optim")
    own = {id(each) for each in model.parameters()}
    groups = optimizer.param_groups
    updated = {id(each) for group in groups for each in group["params"]}
    options = [f" and {name}={groups[0][name]}" for name in OPTIONS if groups[0].get(name)]
    found = {
        "optimizer": f"{type(optimizer).__name__} with learning rate {groups[0]['lr']}"
        + "".join(options),
        "strangers": len(updated - own),
        "left out": len(own - updated),
        "unsharded": [*whole_parameters(model)],
        LARGEST: largest_unit(model),
    }
    whole, losses = watch_whole(model), []
    for batch in given["batches"]:
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    shards = {name: local(each) for name, each in model.named_parameters()}
    return found | {WHOLE: max(whole), "losses": steps(losses), "shards": shards}


def collectives(run: Run) -> list[int]:
    """By rank, in one step."""
    calls = [call.rank for call in run.calls]
    return [calls.count(rank) // STEPS for rank in range(run.world_size)]


def gathered(run: Run) -> list[int]:
    """By rank: bytes of the largest tensor that an all-gather makes."""
    largest = [0] * run.world_size
    for call in run.calls:
        if call.op == GATHER:
            largest[call.rank] = max(largest[call.rank], call.bytes * run.world_size)
    return largest


def model_bytes(case: Case) -> int:
    return FLOAT_BYTES * sum(each.numel() for each in nested_model.on_meta(case).parameters())


def levels(parts: Any) -> int:
    """How many units may contain each other: the root, a block, …, a layer."""
    return 1 + (max(map(levels, parts)) if isinstance(parts, list) else 0)


def no_padding(case: Case) -> bool:
    return all(len(each) % case.world_size == 0 for each in nested_model.on_meta(case).parameters())


def traffic(case: Case) -> Limit | None:
    """Each unit is gathered twice, the root once; gloo's reduce-scatter moves twice its ideal."""
    total = model_bytes(case)
    if total < BUDGET_FROM_BYTES:
        return None
    share = 1 - 1 / case.world_size
    most, least = 4 * total, 4 * total - case.params["unit_bytes"]
    return Limit(1.02 * STEPS * most * share, 0.98 * STEPS * least * share)


def within(most: Callable[[Case], float]) -> Callable[[Case], Limit]:
    return lambda case: Limit(most(case))


top_down = raises(
    "Invariant encountered: value was None when it should not be",
    "calls fully_shard on a module whose parameters are already sharded: start with the innermost "
    "modules, the root comes last (each call takes the parameters that no earlier call took)",
)


@on_each_rank
def other_tensors(output: Any) -> MistakeText:
    if output["strangers"]:
        return (
            "builds an optimizer of tensors that are not the model's parameters: fully_shard "
            "replaces the parameters, so build the optimizer after it, or the loss never moves"
        )
    return None


@on_each_rank
def leaves_out(output: Any) -> MistakeText:
    if left_out := output["left out"]:
        return (
            "does not give the optimizer all of the model's parameters",
            f"{left_out} are missing",
        )
    return None


@on_each_rank
def gathers_the_root_twice(rank: int, attempt: Attempt) -> MistakeText:
    """Its units are as few as possible, and all of them are gathered twice."""
    for spent in attempt.spent:
        if spent.heading == COLLECTIVES and spent.used[rank] == spent.limit[rank] + 1:
            ops = Counter(call.op for call in attempt.calls_of(rank))
            if ops[GATHER] == 2 * ops[SCATTER]:
                return (
                    "gathers every unit twice, the root too: leave its options at their defaults, "
                    "so that it stays whole from forward to backward"
                )
    return None


@on_each_rank
def not_sharded(output: Any) -> MistakeText:
    if names := output["unsharded"]:
        mistake = (
            "leaves parameters in no unit: they are whole on every rank, and nothing averages "
            "their gradients (the root's unit has all that is in no other)"
        )
        return mistake, f"{', '.join(names[:3])}{', …' if len(names) > 3 else ''}"
    return None


@on_each_rank
def too_few_collectives(rank: int, attempt: Attempt) -> MistakeText:
    """After the sign of a unit that is too large."""
    for spent in attempt.spent:
        if spent.heading == COLLECTIVES and rank in spent.ranks_under:
            ops = Counter(call.op for call in attempt.calls_of(rank))
            return (
                "makes fewer collectives than 3U − 1: call fully_shard with one module at a time, "
                "and let every unit but the root reshard after forward, as it does by default",
                f"{ops[GATHER] // STEPS} all-gathers and {ops[SCATTER] // STEPS} reduce-scatters",
            )
    return None


@on_each_rank
def another_optimizer(output: Any) -> MistakeText:
    if output["optimizer"] != (asked := f"SGD with learning rate {LEARNING_RATE}"):
        mistake = f"returns a different optimizer: the task asks for {asked}, and no other option"
        return mistake, output["optimizer"]
    return None


EQUAL_BLOCKS = [[(16, 32), (32, 16)]] * 3
TINY = [(16, 4), (4, 16)]


def case_of(
    name: str,
    world_size: int,
    parts: Sequence[Any],
    unit_bytes: int,
    width: int = 16,
    vocabulary: int = 40,
) -> Case:
    params = {"vocabulary": vocabulary, "width": width, "parts": parts}
    return Case(name, world_size, {**params, "unit_bytes": unit_bytes, "batches": STEPS})


EXERCISE = OnRanks(
    points=4,
    cases=(
        case_of(
            "2 ranks, a block is exactly as large as a unit may be",
            2,
            [*EQUAL_BLOCKS, (16, 6)],
            unit_bytes=4352,
        ),
        case_of(
            "3 ranks, one large block, six tiny ones",
            3,
            [TINY, TINY, [(16, 100), (100, 16)], TINY, TINY, TINY, TINY, (16, 2)],
            unit_bytes=7200,
        ),
        case_of(
            "4 ranks, blocks in blocks",
            4,
            [
                # The most bytes in total, but less is left for the root than by the next.  Without
                # the largest block exactly unit_bytes, and its own 32 bytes are too many.
                [[(8, 2), (2, 8)], [(8, 41), (41, 8)], [(8, 36), (36, 8)], (8, 8)],
                [(8, 9), (9, 8), [(8, 30), (30, 20), (20, 8)]],
                (8, 5),
            ],
            unit_bytes=3000,
            width=8,
            vocabulary=20,
        ),
    ),
    inputs=nested_model.draw_inputs,
    drive=drive,
    tolerance=TOLERANCE,
    budgets=(
        Budget(
            "no unit above unit_bytes",
            from_outputs(LARGEST),
            within(lambda case: case.params["unit_bytes"]),
            LARGEST,
        ),
        Budget(
            "no all-gather above unit_bytes",
            gathered,
            lambda case: Limit(case.params["unit_bytes"]) if no_padding(case) else None,
            "largest all-gather",
        ),
        Budget(
            "a unit and the units around it are whole",
            from_outputs(WHOLE),
            within(lambda case: levels(case.params["parts"]) * case.params["unit_bytes"]),
            WHOLE,
        ),
        # The least number of units would reveal the answer.
        Budget("as few collectives as possible", collectives, None, COLLECTIVES, unit=""),
        Budget("sends ≤ 1.02 × ideal bytes per rank", sent_bytes, traffic),
    ),
    rules=(other_tensors, leaves_out, another_optimizer),
    signs=(
        top_down,
        not_sharded,
        over_budget(
            LARGEST,
            "has a unit that is too large (count bytes, not elements, and the module's own "
            "parameters, too): some of the modules in it must be units",
        ),
        too_few_collectives,
        gathers_the_root_twice,
        over_budget(
            COLLECTIVES,
            "has more units than are needed: a module that fits into the unit around it, up to "
            "exactly unit_bytes, should join it, and of several that do not fit, the one with the "
            "most bytes left for that unit should become a unit first",
            unit="collectives a step",
        ),
    ),
    compares_calls=False,  # FSDP makes them, on no line of the answer
)
