"""Gradient accumulation on a sharded model: with the fewest bytes, or with the least memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard

from autograder.exercise import NAMED_MISTAKES, Attempt, Budget, Case, Limit, OnRanks, Plain
from autograder.exercise.budget import sent_bytes
from autograder.exercise.signs import (
    MistakeText,
    is_over,
    keeps_growing,
    no_barrier,
    on_each_rank,
    over_budget,
)
from autograder.exercises.common import BUDGET_FROM_BYTES, FLOAT_BYTES
from autograder.exercises.lab04_zero import shared
from autograder.exercises.lab04_zero.shared import TOLERANCE, WITHIN, call_in_backward
from autograder.exercises.lab04_zero.shared import loss_of as loss_of_batch
from autograder.exercises.lab05_fsdp import nested_model
from autograder.exercises.lab05_fsdp.nested_model import (
    GATHER,
    SCATTER,
    Block,
    local,
    padded_elements,
    shard,
    steps,
    whole_parameters,
)
from autograder.guest import growth
from autograder.guest.moments import START, mark
from shardlab import measure
from shardlab.run import Call, Run
from shardlab.run.live_memory import RankMemory

BYTES, MEMORY = "bytes", "memory"  # what a step should save
# Moments of the steps that should save memory.
BETWEEN, AT_A_BLOCK = "between micro-batches", "at a block"
CARRIED = "carried by collectives"
LEARNING_RATE = 0.05


def units_of(model: nn.Sequential) -> list[nn.Module]:
    """Each block is a unit; the root has the rest."""
    return [part for part in model if isinstance(part, Block)]


def drive(subject: Any, given: Any, case: Case) -> Plain:
    model = nested_model.nested_model(case.params, given.pop("parameters"))
    for unit in units_of(model):
        fully_shard(unit)
    fully_shard(model)
    saving = ""
    events: list[str] = []

    def mark_if_measured(moment: str) -> None:
        if saving == MEMORY:
            mark(moment)

    def begun(_: nn.Module, inputs: Any) -> None:
        events.append(f"forward of {len(inputs[0])} samples")

    model.register_forward_pre_hook(begun)
    for unit in units_of(model):
        unit.register_forward_pre_hook(lambda *_: mark_if_measured(AT_A_BLOCK))
        call_in_backward(unit, lambda: mark_if_measured(AT_A_BLOCK))

    def loss_of(model: nn.Module, micro_batch: Sequence[Tensor]) -> Tensor:
        mark_if_measured(BETWEEN)
        loss = loss_of_batch(model, micro_batch)
        loss.register_hook(lambda _: events.append("backward"))
        return loss

    mark(START)
    count = case.params["micro_batches"]
    keys = "gradients", "order", "whole", "changed", "micro-batches"
    found: dict[str, list[Plain]] = {key: [] for key in keys}
    for saving in case.params["saves"]:
        micro_batches = [given["batches"].pop(0) for _ in range(count)]
        before, handed = sums(model), [*map(id, micro_batches)]
        with measure(saving):
            subject(model, micro_batches, loss_of, saving)
        found["micro-batches"].append([*map(id, micro_batches)] == handed)
        mark_if_measured(BETWEEN)
        shards = {name: local(each.grad) for name, each in model.named_parameters()}
        found["gradients"].append(shards)
        found["order"].append([*events])
        whole = [*whole_parameters(model)]
        found["whole"].append(whole)
        # Whole ones are named as such.
        found["changed"].append(not whole and sums(model) != before)
        events.clear()
        descend(model)

    def one_step() -> None:  # without an update
        subject(model, micro_batches[:1], loss_of, saving)
        model.zero_grad()

    roots = {"model": model, "the answer": subject}
    grows = growth.found_in_more_steps(roots, one_step, case.params["more_steps"])
    return found | {"gradients": steps(found["gradients"]), "grows": grows}


def sums(model: nn.Module) -> list[float]:
    """Of each shard: they show a change without a copy, which would count as memory."""
    return [shard(each).detach().sum().item() for each in model.parameters()]


def descend(model: nn.Module) -> None:
    """A step of SGD on this rank's shards; torch's own takes 0.1 s to plan it for DTensors."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                shard(parameter).sub_(LEARNING_RATE * shard(parameter.grad))
    model.zero_grad()


def unit_bytes(case: Case) -> list[int]:
    """Of each unit, padded; the root's last."""
    model = nested_model.on_meta(case)
    *units, whole = (
        FLOAT_BYTES * padded_elements(module.parameters(), case.world_size)
        for module in (*units_of(model), model)
    )
    return [*units, whole - sum(units)]


def steps_of(case: Case, save: str) -> int:
    return [*case.params["saves"]].count(save)


def carried(run: Run) -> list[int]:
    """By rank: what the calls that save bytes send in a ring, whatever the backend does."""

    def ring_bytes(call: Call) -> float:
        if call.op == GATHER:  # of a shard
            return call.bytes * (run.world_size - 1)
        rounds = 1 if call.op == SCATTER else 2
        return rounds * call.bytes * (run.world_size - 1) / run.world_size

    ranks = range(run.world_size)
    return [round(sum(map(ring_bytes, run.calls_in(BYTES, rank)))) for rank in ranks]


def carried_limit(case: Case) -> Limit | None:
    """Each unit gathered once and reduce-scattered once: 2 (N - 1)/N Ψ."""
    steps, share = steps_of(case, BYTES), 1 - 1 / case.world_size
    return Limit.around(steps * 2 * share * sum(unit_bytes(case)), 1e-3) if steps else None


def wire_limit(case: Case) -> Limit | None:
    """Of the whole run, where all steps save bytes: no rank says when a step begins or ends.
    gloo's reduce-scatter moves twice its ideal: 3 (N - 1)/N Ψ."""
    steps, total = steps_of(case, BYTES), sum(unit_bytes(case))
    is_measured = [*case.params["saves"]] == [BYTES] * steps and not case.params["more_steps"]
    if not is_measured or total < BUDGET_FROM_BYTES:
        return None
    ideal = steps * 3 * (1 - 1 / case.world_size) * total
    return Limit(WITHIN * ideal, 0.9 * ideal)


def live_at(memory: RankMemory, moment: str, *categories: str) -> int:
    """The most that was live of these categories together."""
    ends = [phase.at_end for phase in memory.phases if phase.name == moment]
    return max((sum(end[name] for name in categories) for end in ends), default=0)


def live_budget(moment: str, most: Callable[[Case], float]) -> Budget:
    def used(run: Run) -> list[int]:
        return [live_at(memory, moment, "parameters", "gradients") for memory in run.memory]

    def limit(case: Case) -> Limit | None:
        return Limit(WITHIN * most(case)) if steps_of(case, MEMORY) else None

    return Budget(f"parameters and gradients {moment}", used, limit, f"live {moment}")


def shards(case: Case) -> float:
    """Of the parameters and of the gradients."""
    return 2 * sum(unit_bytes(case)) / case.world_size


def shards_and_units(case: Case) -> float:
    """The root and one more unit are whole, and so are their gradients."""
    *units, root = unit_bytes(case)
    return shards(case) + 2 * (root + max(units, default=0))


def process_memory(moment: str, most: Callable[[Case], float]) -> Budget:
    """The shards of the parameters exist at the start."""
    return shared.process_memory(
        moment, lambda case: most(case) - shards(case) / 2, lambda case: sum(unit_bytes(case))
    )


@on_each_rank
def other_order(output: Any, expected: Any) -> MistakeText:
    for events, right in zip(output["order"], expected["order"], strict=True):
        if events != right:
            mistake = (
                "does not run one forward and then one backward for each micro-batch, in turn: "
                "until backward its activations stay, so micro-batches would save no memory"
            )
            return mistake, ", ".join(events)
    return None


@on_each_rank
def keeps_activations(rank: int, attempt: Attempt) -> MistakeText:
    run, case = attempt.run, attempt.case
    if run is None or not steps_of(case, MEMORY):
        return None
    live = live_at(run.memory[rank], BETWEEN, "activations")
    if live < FLOAT_BYTES * nested_model.SAMPLES * case.params["width"]:  # a few losses may stay
        return None
    mistake = (
        "keeps activations of earlier micro-batches in a step that should save memory: let "
        "backward release them, and keep no loss with its graph"
    )
    return mistake, f"{live:,} bytes"


@on_each_rank
def changes_the_list(output: Any) -> MistakeText:
    if not all(output["micro-batches"]):
        return "changes the list of micro-batches, which is the caller's: leave it as it is"
    return None


@on_each_rank
def still_whole(output: Any, case: Case) -> MistakeText:
    for save, names in zip(case.params["saves"], output["whole"], strict=True):
        if names:
            mistake = (
                "leaves parameters whole at the end: the optimizer updates the shards, so let the "
                "last backward pass reshard"
            )
            return mistake, f'{names[0]} in a step with save="{save}"'
    return None


@on_each_rank
def steps_itself(output: Any) -> MistakeText:
    if any(output["changed"]):
        return "changes the parameters: the caller's optimizer steps, accumulate does not"
    return None


@on_each_rank
def no_gradients(output: Any, case: Case) -> MistakeText:
    for save, gradients in zip(case.params["saves"], output["gradients"].values(), strict=True):
        if any(each is None for each in gradients.values()):
            return (
                "ends without a gradient in its shards: the last backward pass must reduce-scatter "
                "it, with set_requires_gradient_sync(True), and nothing may reset it afterwards",
                f'in a step with save="{save}"',
            )
    return None


@on_each_rank
def repeats_exchanges(rank: int, case: Case, attempt: Attempt) -> MistakeText:
    if attempt.run is None or rank not in is_over(attempt, CARRIED):
        return None
    sizes, steps = unit_bytes(case), steps_of(case, BYTES)
    calls = attempt.run.calls_in(BYTES, rank)
    gathers = [call.bytes for call in calls if call.op == GATHER]
    of_units = sum(gathers.count(size // case.world_size) for size in {*sizes})
    scatters = sum(call.op == SCATTER for call in calls)
    if max(of_units, scatters) <= len(sizes) * steps:
        return None  # it sends something else
    why = []
    if of_units > len(sizes) * steps:
        why.append("its parameters do not change, so keep them whole until the last backward")
    if scatters > len(sizes) * steps:
        why.append(
            "let its gradients add up where they are, with set_requires_gradient_sync(False), "
            "until the last micro-batch"
        )
    return (
        f"exchanges a unit more than once in a step that should save bytes: {'; '.join(why)}",
        f"{of_units / steps:g} all-gathers, {scatters / steps:g} reduce-scatters a step, "
        f"{len(sizes)} units",
    )


SMALL = {"vocabulary": 24, "width": 8, "parts": [[(8, 12), (12, 8)]] * 4 + [(8, 4)]}
UNEVEN = {
    "vocabulary": 7,
    "width": 9,
    "parts": [[(9, 9)], [(9, 9)], [(9, 5), (5, 9)], [(9, 9)], [(9, 9)], (9, 1)],
}


def case_of(
    name: str,
    world_size: int,
    model: dict[str, Any],
    micro_batches: int,
    *saves: str,
    more_steps: int = 0,
) -> Case:
    steps = {"micro_batches": micro_batches, "saves": list(saves), "more_steps": more_steps}
    return Case(name, world_size, {**model, **steps, "batches": micro_batches * len(saves)})


EXERCISE = OnRanks(
    points=4,
    cases=(
        case_of(
            "2 ranks, 4 micro-batches, the fewest bytes",
            2,
            SMALL,
            4,
            *(BYTES, BYTES),
            more_steps=growth.STEPS,
        ),
        case_of("2 ranks, 3 micro-batches, the least memory", 2, UNEVEN, 3, MEMORY),
        case_of("2 ranks, 3 micro-batches, both in turn", 2, SMALL, 3, BYTES, MEMORY),
    ),
    inputs=nested_model.draw_inputs,
    drive=drive,
    tolerance=TOLERANCE,
    budgets=(
        Budget(
            "save='bytes': its calls send 2(N − 1)/N · Ψ a step", carried, carried_limit, CARRIED
        ),
        Budget(
            "sends ≤ 1.02 × ideal bytes per rank",
            sent_bytes,
            wire_limit,
            from_outside=True,
            contradicts="moves other bytes than those of its recorded calls: the system's counters "
            "show what each rank really sends",
        ),
        live_budget(BETWEEN, shards),
        live_budget(AT_A_BLOCK, shards_and_units),
        process_memory(BETWEEN, shards),
        process_memory(AT_A_BLOCK, shards_and_units),
    ),
    rules=(other_order, keeps_activations, changes_the_list, no_barrier, keeps_growing),
    signs=(
        still_whole,
        steps_itself,
        no_gradients,
        NAMED_MISTAKES,
        repeats_exchanges,
        over_budget(
            f"live {BETWEEN}",
            "keeps whole gradients or parameters between micro-batches in a step that should save "
            "memory: let each backward pass reduce-scatter, with set_requires_gradient_sync(True), "
            "and reshard",
        ),
        over_budget(
            f"live {AT_A_BLOCK}",
            "has more units whole at a time than the root and a block, in a step that should save "
            "memory: let them reshard after forward (the switch keeps its value from step to step)",
        ),
    ),
    memory=True,
)
