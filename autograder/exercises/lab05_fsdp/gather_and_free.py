"""Units that are gathered before they compute and freed after it, the next one prefetched."""

from __future__ import annotations

import gc
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from autograder.exercise import NAMED_MISTAKES, Attempt, Budget, Case, Finding, OnRanks, Plain
from autograder.exercise.signs import MistakeText, keeps_growing, no_barrier, on_each_rank, raises
from autograder.exercises.common import FLOAT_BYTES, linear_of
from autograder.exercises.lab04_zero import shared
from autograder.exercises.lab04_zero.shared import (
    GLOO_THREADS,
    call_in_backward,
    samples,
    unit_bytes,
)
from autograder.exercises.lab05_fsdp.nested_model import steps as by_step
from autograder.guest import growth
from autograder.guest.moments import START, mark, mark_settled
from shardlab.errors import RankError
from shardlab.run import Run
from shardlab.trace import measure as trace

LR = 0.5
AT_END = "after backward"
IN_FORWARD, IN_BACKWARD = "in forward", "in backward"  # while a unit computes
NOTHING_YET = "before the first forward pass"
FREED = "out of bounds for storage of size 0"  # in PyTorch's error
# (k, which units have memory, how many calls with async_op=True nobody has waited for) while unit k
# computes.
Moment = tuple[int, list[int], int]
Seen = dict[str, list[Moment]]


class LastFirst(nn.Sequential):
    """Calls its modules in reverse: the gradients of its first parameters are complete first."""

    def forward(self, x: Tensor) -> Tensor:
        for module in reversed(self):
            x = module(x)
        return x


def blocks_of(layers: list[Tensor]) -> list[nn.Sequential]:
    """Empties the list, so that the units' parameters are the only references to the tensors."""
    blocks: list[nn.Sequential] = []
    while layers:
        first, second = (linear_of(layers.pop(0), layers.pop(0)) for _ in range(2))
        if len(blocks) % 2:
            blocks.append(LastFirst(second, nn.Tanh(), first))
        else:
            blocks.append(nn.Sequential(first, nn.Tanh(), second))
    return blocks


def loss_of(output: Tensor, targets: Tensor) -> Tensor:
    """The mean over the samples, not over the outputs: so gradients are about 1 at any width."""
    return nn.functional.mse_loss(output, targets, reduction="sum") / len(targets)


def has_memory(block: nn.Sequential) -> bool:
    """Whether its parameters have their elements: it is whole, or will be soon."""
    layers: list[Any] = [block[0], block[2]]
    return all(
        tensor.numel() == size and tensor.untyped_storage().nbytes() >= tensor.nbytes
        for layer in layers
        for tensor, size in (
            (layer.weight, layer.in_features * layer.out_features),
            (layer.bias, layer.out_features),
        )
    )


def with_memory(blocks: Sequence[nn.Sequential]) -> list[int]:
    return [k for k, block in enumerate(blocks) if has_memory(block)]


def observe(blocks: Sequence[nn.Sequential], seen: Seen, begun: list[str]) -> None:
    """Notes what has memory each time that a unit is halfway through its forward or backward, and
    which one has begun: the last is that in which an error occurs."""

    def note(moment: str, k: int, *_: Any) -> None:
        works = trace.recorder.open_works.values() if trace.recorder else ()
        waited_for_by_nobody = sum(call.waits is None for call in works)
        seen[moment].append((k, with_memory(blocks), waited_for_by_nobody))
        mark(moment)

    def begin(moment: str, k: int, *_: Any) -> None:
        begun.append(f"unit {k} {moment}")

    for k, block in enumerate(blocks):
        block.register_forward_pre_hook(partial(begin, IN_FORWARD, k))
        call_in_backward(block, partial(begin, IN_BACKWARD, k))
        block[1].register_forward_hook(partial(note, IN_FORWARD, k))
        call_in_backward(block[1], partial(note, IN_BACKWARD, k))


def follow(blocks: Sequence[nn.Sequential], memory: list[StorageWeakRef]) -> None:
    """Notes the memory of each block's output and of the gradient of it, without keeping it."""

    def note(_: nn.Module, given: Any, output: Tensor) -> None:
        add(output)
        output.register_hook(add)

    def add(tensor: Tensor) -> None:
        memory.append(StorageWeakRef(tensor.untyped_storage()))

    for block in blocks:
        block.register_forward_hook(note)


def drive(subject: Any, given: Any, case: Case) -> Plain:
    blocks = blocks_of(given["layers"])
    begun = [NOTHING_YET]
    try:
        return driven(subject, blocks, given, case, begun)
    except RuntimeError as error:
        if FREED in str(error):
            whole = _listed(with_memory(blocks))
            error.args = (f"{error}; {begun[-1]}; with memory: {whole}",)
        raise


def driven(
    subject: Any, blocks: list[nn.Sequential], given: Any, case: Case, begun: list[str]
) -> Plain:
    seen: Seen = {IN_FORWARD: [], IN_BACKWARD: []}
    found: dict[str, Any] = {"y": [], "gradients": [], AT_END: [], "left": []}
    memory: list[StorageWeakRef] = []
    observe(blocks, seen, begun)
    follow(blocks, memory)
    mark(START)
    slices = subject(list(blocks))
    if not isinstance(slices, list | tuple) or any(not isinstance(each, Tensor) for each in slices):
        raise TypeError("gather_and_free should return the list of the units' slices, own")
    found["built"] = with_memory(blocks)
    found["sizes"] = [each.numel() for each in slices]
    optimizer = torch.optim.SGD(slices, lr=LR)
    model = nn.Sequential(*blocks)
    for inputs, targets in given["batches"]:
        output = model(inputs)
        found["y"].append(output.detach().clone())
        loss_of(output, targets).backward()
        del output
        found[AT_END].append(with_memory(blocks))
        mark_settled(AT_END)
        gc.collect()  # hooks of modules make cycles
        found["left"].append(sum(not each.expired() for each in memory))
        found["gradients"].append({f"unit {k}": each.grad for k, each in enumerate(slices)})
        optimizer.step()
        optimizer.zero_grad()

    def one_step() -> None:  # without an update
        loss_of(model(inputs), targets).backward()
        optimizer.zero_grad()

    modules = {f"module {k}": block for k, block in enumerate(blocks)}
    steps = case.params.get("more_steps", 0)
    found |= {key: by_step(found[key]) for key in ("y", "gradients")}
    return found | seen | {"grows": growth.found_in_more_steps(modules, one_step, steps)}


# ---- cases and budgets ---------------------------------------------------------------------------


def case_of(
    name: str, world_size: int, width: int, inner: Sequence[int], weight: float = 1, **more: int
) -> Case:
    """A unit is two layers, ``width`` to ``inner[k]`` and back."""
    params = {
        "widths": [width, *(each for between in inner for each in (between, width))],
        "buckets": [[*range(4 * k, 4 * k + 4)] for k in range(len(inner))],
        "samples": 3,
    }
    return Case(name, world_size, params | more, weight=weight)


def unit_count(case: Case) -> int:
    return len(case.params["buckets"])


def held_bytes(case: Case, units: float, slices: int) -> float:
    """Bytes of ``units`` whole units, ``slices`` times this rank's slices of all units, and, while
    units compute, at most each unit's activations and their gradients."""
    if not units:
        return shared.held_bytes(case, units, slices)
    width, *widths = case.params["widths"]
    activations = samples(case) * 2 * (width + max(widths[::2])) * unit_count(case)
    return shared.held_bytes(case, units, slices) + FLOAT_BYTES * activations


def live(label: str, moment: str, units: float, slices: int) -> Budget:
    def peaks(run: Run) -> list[int]:
        phase = moment.removeprefix("in ")
        by_rank = ([each for each in rank.phases if each.name == phase] for rank in run.memory)
        return [max((sum(p.at_peak.values()) for p in own), default=0) for own in by_rank]

    return shared.live(label, f"live {moment}", peaks, lambda case: held_bytes(case, units, slices))


def process_memory(moment: str, units: float, slices: int) -> Budget:
    """Minus all parameters (N slices), which the process has at the start."""
    return shared.process_memory(
        moment, lambda case: held_bytes(case, units, slices - case.world_size)
    )


# ---- rules: what each rank was seen to do --------------------------------------------------------


@on_each_rank
def wrong_slices(output: Any, case: Case) -> MistakeText:
    right = [size // FLOAT_BYTES // case.world_size for size in unit_bytes(case)]
    if output["sizes"] != right:
        evidence = f"{output['sizes']} elements, expected {right}"
        return "should return one slice for each unit, in order, of ⌈Ψ/N⌉ elements", evidence
    return None


@on_each_rank
def schedule(output: Any, case: Case) -> MistakeText:
    """The first moment at which the wrong units have memory."""
    if output["built"]:
        return "has whole units before the first forward pass", _listed(output["built"])
    units = unit_count(case)
    for step, left in enumerate(output[AT_END]):
        kept: list[int] = []  # from forward to backward
        for moment in (IN_FORWARD, IN_BACKWARD):
            for seen in output[moment][step * units :][:units]:
                if found := _wrong_at(moment, seen, kept, units):
                    return found
                kept = seen[1] if moment == IN_FORWARD else []
        if left:
            return (
                "has whole units after backward: free each one, and prefetch none after unit 0 "
                "(units[-1] is the last)",
                _listed(left),
            )
    return None


def _wrong_at(moment: str, seen: Moment, kept: list[int], units: int) -> MistakeText:
    k, whole, under_way = seen
    following = k + 1 if moment == IN_FORWARD else k - 1
    after = following if 0 <= following < units else None
    evidence = f"{_listed(whole)} while unit {k} computes"
    if len(whole) > 2:
        return (
            f"has more than two units in memory {moment}: free each unit once it has computed, "
            "and prefetch only the next one",
            evidence,
        )
    if after is not None and after not in whole:
        return (
            f"does not prefetch {moment}: start the next unit's all-gather before the current one "
            "computes",
            f"while unit {k} computes, unit {after} has no memory",
        )
    if moment == IN_FORWARD and any(j < k for j in whole):
        # In backward it stays until the end, where that is named.
        return (
            "has a unit in memory in forward that has computed already: free each unit once it has "
            "computed (only the last may stay whole), and prefetch none after the last",
            evidence,
        )
    if after is not None and not under_way and after not in kept:
        return (
            f"has no all-gather under way while a unit computes {moment}, so they do not overlap: "
            "start the next one before, and wait for it afterwards",
            f"while unit {k} computes, nothing is started and not waited for",
        )
    return None


def exchanges_late(attempt: Attempt) -> Finding | None:
    """By the order of calls: before a unit computes backward, all units after it have started at
    least one exchange each."""
    if attempt.run is None or attempt.error is not None:
        return None
    for rank in range(attempt.case.world_size):
        moments = [
            block.start_s
            for block in attempt.run.traffic.blocks
            if block.rank == rank and block.label == IN_BACKWARD
        ]
        exchanges = [
            call.start_s
            for call in attempt.calls_of(rank)
            if call.bytes and not call.op.startswith("all_gather")
        ]
        for i, moment in enumerate(moments if exchanges else []):  # none at all: wrong gradients
            complete = i % unit_count(attempt.case)
            started = sum(moments[i - complete] < start < moment for start in exchanges)
            if started < complete:
                return Finding(
                    f"rank {rank}",
                    "exchanges the gradients of a unit late: start their reduce-scatter as soon as "
                    "they are complete, before the next unit's backward pass",
                    f"units done with backward: {complete}, exchanges started: {started}",
                )
    return None


@on_each_rank
def gathers_again(rank: int, case: Case, attempt: Attempt) -> MistakeText:
    """Units have different sizes, so the bytes of a call show which one it gathers."""
    calls = attempt.calls_of(rank)
    gathers = [call.bytes for call in calls if call.op.startswith("all_gather")]
    steps = case.params["batches"] + case.params.get("more_steps", 0)
    for unit, size in enumerate(unit_bytes(case)):
        if (times := gathers.count(size // case.world_size)) > 2 * steps:
            return (
                "gathers a unit more than twice in a step: once is enough for forward, and once "
                "for backward",
                f"unit {unit}: {times} all-gathers, and {steps} steps",
            )
    return None


def _listed(units: Sequence[int]) -> str:
    if not units:
        return "no unit"
    return f"unit{'s' * (len(units) != 1)} {', '.join(map(str, units))}"


@on_each_rank
def keeps_tensors(output: Any) -> MistakeText:
    if left := next(filter(None, output["left"]), 0):
        return (
            "keeps outputs of modules, or gradients of them, after backward: nothing of a step may "
            "stay but the gradients of its slices",
            f"{left} tensors",
        )
    return None


returns_a_handle = raises(
    "RemovableHandle",
    "has a hook that returns a value: what a forward hook returns replaces the module's output",
)


def uses_freed(attempt: Attempt) -> Finding | None:
    error = attempt.error
    if not isinstance(error, RankError) or FREED not in error.message:
        return None
    mistake = (
        "computes with a unit that has no memory: gather it again, and free it only when it is done"
    )
    where = re.search(r"(unit \d+ in \w+; with memory: [\w, ]+)$", error.message)
    if NOTHING_YET in error.message:
        mistake = (
            "uses a unit's buffer before it is gathered for the first time: the slices to return "
            "are each unit's own"
        )
    return Finding(f"rank {error.rank}", mistake, where[1] if where else "")


@on_each_rank
def no_gradient(output: Any) -> MistakeText:
    if any(each is None for each in output["gradients"]["step 0"].values()):
        return (
            "returns a slice that has no .grad after backward: return each unit's own, and set its "
            ".grad in backward"
        )
    return None


EXERCISE = OnRanks(
    points=5,
    cases=(
        case_of("4 ranks, 3 units, 2 batches", 4, 5, [4, 7, 2], batches=2, more_steps=growth.STEPS),
        case_of("5 ranks, one unit of 4 elements", 5, 1, [1], weight=0.5, batches=1),
        case_of("4 ranks, 12 units of 128 KiB", 4, 256, [*range(60, 72)], weight=1.5, batches=1),
    ),
    inputs=shared.draw_inputs,
    drive=drive,
    tolerance=shared.TOLERANCE,
    budgets=(
        # Two all-gathers and a reduce-scatter of each unit.  The last may stay whole from forward
        # to backward: it is not gathered again.
        shared.traffic(
            lambda case: unit_bytes(case) * 3 * case.params["batches"],
            spared=lambda case: max(unit_bytes(case)) * case.params["batches"],
        ),
        live("two units live in forward", IN_FORWARD, units=2, slices=1),
        # Two units, and the gradients of one, as flattened and as received.
        live("two units live in backward", IN_BACKWARD, units=4 + 2 * GLOO_THREADS, slices=2),
        live("no unit live afterwards", AT_END, units=0, slices=2),
        process_memory(IN_FORWARD, units=2, slices=1),
        process_memory(IN_BACKWARD, units=4, slices=2),
    ),
    rules=(
        wrong_slices,
        schedule,
        exchanges_late,
        gathers_again,
        *shared.RULES,
        no_barrier,
        keeps_growing,
        keeps_tensors,
    ),
    compares_calls=False,  # the last unit may stay whole
    signs=(returns_a_handle, uses_freed, no_gradient, NAMED_MISTAKES, shared.expensive),
    memory=True,
    closed=("torch.distributed.fsdp", "torch.distributed._composable"),
)
