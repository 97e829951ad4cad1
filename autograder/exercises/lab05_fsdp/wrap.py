"""Choose the units of fully_shard: as few as possible, none larger than a budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from autograder.exercise import Attempt, Budget, Case, Limit, OnRanks, Plain, sent_bytes
from autograder.exercise.budget import from_outputs
from autograder.exercise.signs import MistakeText, is_over, on_each_rank, raises
from autograder.exercises.lab05_fsdp import nested_model
from autograder.exercises.lab05_fsdp.nested_model import (
    BUDGET_FROM_BYTES,
    FLOAT_BYTES,
    GATHER,
    SCATTER,
    layers_of,
    loss_of,
    units_of,
)
from shardlab.run import Call, Run

STEPS = 2
LEARNING_RATE = 0.1
OPTIONS = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")
LARGEST, WHOLE, MESSAGES = "largest unit", "whole at once", "messages"


def watch_whole(model: nn.Module) -> list[int]:
    """Bytes of the parameters that are whole, when forward or backward reaches each layer."""
    seen: list[int] = []

    def look(*_: Any) -> None:
        whole = [each for each in model.parameters() if not isinstance(each, DTensor)]
        seen.append(FLOAT_BYTES * sum(each.numel() for each in whole))

    def look_in_backward(_: nn.Module, given: Any, output: Tensor) -> None:
        output.register_hook(look)

    for layer in layers_of(model):  # fully_shard's own hooks run before these
        layer.register_forward_pre_hook(look)
        layer.register_forward_hook(look_in_backward)
    return seen


def drive(subject: Any, given: Any, case: Case) -> Plain:
    model = nested_model.nested_model(case.params, given["parameters"])
    optimizer = subject(model, case.params["unit_bytes"])
    if not isinstance(optimizer, torch.optim.Optimizer):
        return {"optimizer": "None" if optimizer is None else f"a {type(optimizer).__name__}"}
    parameters = list(model.parameters())
    of_optimizer = [each for group in optimizer.param_groups for each in group["params"]]
    known = {id(each) for each in parameters}
    named = model.named_parameters()
    units = units_of(model)
    usual = torch.optim.SGD(parameters, lr=LEARNING_RATE).defaults
    found = {
        "kind": type(optimizer).__name__,
        "options": [
            f"{option}={group[option]}"
            for group in optimizer.param_groups
            for option in OPTIONS
            if option in group and group[option] != usual[option]
        ],
        "strangers": sum(id(each) not in known for each in of_optimizer),
        "unsharded": [name for name, each in named if not isinstance(each, DTensor)],
        "root": isinstance(model, FSDPModule),
        "units": units,
        LARGEST: max(units.values(), default=0),
    }
    whole, losses = watch_whole(model), []
    for batch in given["batches"]:
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    shards = [nested_model.local(each) for each in model.parameters()]
    return found | {WHOLE: max(whole), "losses": losses, "shards": shards}


def messages(run: Run) -> list[int]:
    """By rank: collectives of one step."""
    calls = [call.rank for call in run.calls]
    return [calls.count(rank) // STEPS for rank in range(run.world_size)]


def gathered(run: Run) -> list[int]:
    """By rank: bytes of the largest tensor that an all-gather makes."""

    def largest(rank: int) -> int:
        return max((made_bytes(call, run) for call in run.calls if call.rank == rank), default=0)

    return [largest(rank) for rank in range(run.world_size)]


def made_bytes(call: Call, run: Run) -> int:
    return call.bytes * run.world_size if call.op == GATHER else 0


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
twice = raises(
    "can only be applied to a module once",
    "calls fully_shard twice on the same module",
)


@on_each_rank
def no_optimizer(output: Any) -> MistakeText:
    if "optimizer" in output:
        return "should return an optimizer of torch.optim", f"it returns {output['optimizer']}"
    return None


@on_each_rank
def other_tensors(output: Any) -> MistakeText:
    if count := output["strangers"]:
        mistake = (
            "builds an optimizer of tensors that are not the model's parameters: fully_shard "
            "replaces the parameters, so build the optimizer after it, or the loss never moves"
        )
        return mistake, f"{count} of its tensors"
    return None


@on_each_rank
def not_sharded(output: Any) -> MistakeText:
    names = output["unsharded"]
    if not names:
        return None
    evidence = f"{', '.join(names[:3])}{', …' if len(names) > 3 else ''}"
    if not output["units"]:
        return "never calls fully_shard: every parameter is whole on every rank", evidence
    if output["root"]:
        return "leaves parameters whole on every rank", evidence
    mistake = (
        "leaves the root out: the parameters in no unit are plain Tensors next to DTensors, whole "
        "on every rank, and nothing averages their gradients"
    )
    return mistake, evidence


@on_each_rank
def too_large(output: Any, rank: int, case: Case, attempt: Attempt) -> MistakeText:
    if rank not in is_over(attempt, LARGEST):
        return None
    units: dict[str, int] = output["units"]
    name = max(units, key=lambda each: units[each])
    if len(units) == 1:
        mistake = "has one unit, the root: the whole model is gathered at once"
    else:
        mistake = (
            "has a unit that is too large, a block's own parameters included: split it, some of "
            "its modules must be units"
        )
    return mistake, f"{name}: {units[name]:,} bytes, {case.params['unit_bytes']:,} allowed"


def per_step(attempt: Attempt, rank: int) -> Counter[str]:
    """How often a rank calls each collective in a step."""
    ops = Counter(call.op for call in attempt.run.calls if call.rank == rank) if attempt.run else {}
    return Counter({op: count // STEPS for op, count in ops.items()})


@on_each_rank
def grouped(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    """Fewer messages than modules that are units."""
    count = sum(size > 0 for size in output["units"].values())
    if (scatters := per_step(attempt, rank)[SCATTER]) < count:
        mistake = "makes one unit of several modules: call fully_shard with one module at a time"
        return mistake, f"{count} modules, {scatters} reduce-scatters a step"
    return None


@on_each_rank
def gathered_once(rank: int, attempt: Attempt) -> MistakeText:
    """As many all-gathers as reduce-scatters, though the root is not the only unit."""
    ops = per_step(attempt, rank)
    if ops[GATHER] == ops[SCATTER] > 1:
        mistake = (
            "gathers each unit once a step: units that stay whole from forward to backward are all "
            "whole at once, so let them reshard after forward"
        )
        return mistake, f"{ops[GATHER]} all-gathers and {ops[SCATTER]} reduce-scatters"
    return None


@on_each_rank
def too_many(rank: int, attempt: Attempt) -> MistakeText:
    for spent in attempt.spent:
        if spent.heading != MESSAGES or rank not in spent.ranks_over:
            continue
        ops, most = per_step(attempt, rank), spent.limit[rank]
        evidence = f"{spent.used[rank]} messages a step, {most} are enough"
        if ops.keys() - {GATHER, SCATTER}:
            return None
        if ops[SCATTER] > (most + 1) // 3:
            mistake = (
                "has more units than it needs: a module that fits into the unit around it should "
                "join it, and of several that do not fit, the one with the most bytes left for "
                "that unit should become a unit first"
            )
            return mistake, f"{evidence}; {ops[SCATTER]} units"
        if ops[GATHER] == 2 * ops[SCATTER]:
            mistake = (
                "gathers the root twice a step: backward begins where forward ends, so by default "
                "the root stays whole in between"
            )
            return mistake, evidence
    return None


@on_each_rank
def another_optimizer(output: Any) -> MistakeText:
    if output["kind"] != "SGD":
        return "returns a different optimizer: the task asks for torch.optim.SGD", output["kind"]
    if options := output["options"]:
        mistake = f"changes options of SGD: learning rate {LEARNING_RATE}, the others by default"
        return mistake, ", ".join(options)
    return None


EQUAL_BLOCKS = [[(16, 32), (32, 16)]] * 3
TINY = [(16, 4), (4, 16)]

EXERCISE = OnRanks(
    points=4,
    cases=(
        Case(
            "2 ranks, a block is exactly as large as a unit may be",
            2,
            {
                "vocabulary": 40,
                "width": 16,
                "parts": [*EQUAL_BLOCKS, (16, 6)],
                "unit_bytes": 4352,
                "batches": STEPS,
            },
        ),
        Case(
            "3 ranks, one large block, six tiny ones",
            3,
            {
                "vocabulary": 40,
                "width": 16,
                "parts": [TINY, TINY, [(16, 100), (100, 16)], TINY, TINY, TINY, TINY, (16, 2)],
                "unit_bytes": 7200,
                "batches": STEPS,
            },
        ),
        Case(
            "4 ranks, blocks in blocks",
            4,
            {
                "vocabulary": 20,
                "width": 8,
                "parts": [
                    # The most bytes in total, but less is left for the root than by the next.
                    [[(8, 12), (12, 8)], [(8, 41), (41, 8)], [(8, 40), (40, 8)], (8, 8)],
                    [(8, 9), (9, 8), [(8, 30), (30, 20), (20, 8)]],
                    (8, 5),
                ],
                "unit_bytes": 3000,
                "batches": STEPS,
            },
        ),
    ),
    inputs=nested_model.draw_inputs,
    drive=drive,
    tolerance=nested_model.TOLERANCE,
    budgets=(
        Budget(
            "no unit above unit_bytes",
            from_outputs(LARGEST),
            within(lambda case: case.params["unit_bytes"]),
            LARGEST,
        ),
        Budget(
            "no message above unit_bytes",
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
        Budget("as few messages as possible", messages, None, MESSAGES, unit=""),
        Budget("sends ≤ 1.02 × ideal bytes per rank", sent_bytes, traffic),
    ),
    signs=(
        top_down,
        twice,
        no_optimizer,
        other_tensors,
        not_sharded,
        too_large,
        grouped,
        gathered_once,
        too_many,
        another_optimizer,
    ),
)
