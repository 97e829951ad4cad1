"""Units that are gathered before they compute and freed after it, the next one prefetched."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
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
    OnRanks,
    Plain,
    sent_bytes,
)
from autograder.exercise.process_memory import process_memory_budget
from autograder.exercise.signs import (
    MistakeText,
    keeps_growing,
    no_barrier,
    on_each_rank,
    over_budget,
    raises,
)
from autograder.exercises.common import linear_of
from autograder.exercises.lab04_zero.shared import (
    AT_LEAST,
    BUDGET_FROM_BYTES,
    FLOAT_BYTES,
    GLOO_THREADS,
    LARGE_BYTES,
    RULES,
    TOLERANCE,
    WITHIN,
    expensive,
)
from autograder.guest import growth
from autograder.guest.moments import START, mark, mark_settled
from shardlab.errors import RankError
from shardlab.estimate import scatter_or_gather_sent_bytes
from shardlab.run import Run
from shardlab.trace import measure as trace

LR = 0.5
SAMPLES = 3
AT_END = "after backward"
IN_FORWARD, IN_BACKWARD = "in forward", "in backward"  # while a unit computes
NO_SLICES = "not a list of slices"
NOTHING_YET = "before the first forward pass"
FREED = "out of bounds for storage of size 0"  # in PyTorch's error
# (k, which units have memory, how many calls with async_op=True nobody has waited for) while unit k
# computes.
Seen = dict[str, list[tuple[int, list[int], int]]]


def draw_inputs(case: Case, rng: np.random.Generator) -> list[Plain]:
    """The same units on all ranks, [weight, bias, weight, bias] each, and different batches.

    A batch: [inputs [B, D], targets [B, D]].
    """
    width = case.params["width"]

    def normal(*shape: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape))

    layers = [
        (normal(*shape) / fan_in**0.5).float()
        for inner in case.params["inner"]
        for fan_in, fan_out in ((width, inner), (inner, width))
        for shape in ((fan_out, fan_in), (fan_out,))
    ]

    def batch() -> list[Tensor]:
        return [normal(SAMPLES, width).float(), normal(SAMPLES, width).float()]

    ranks = range(case.world_size)
    return [
        {"layers": list(layers), "batches": [batch() for _ in range(case.params["batches"])]}
        for _ in ranks
    ]


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


def started() -> int:
    """Calls with async_op=True that nobody has waited for yet."""
    calls = trace.recorder.open_works.values() if trace.recorder else ()
    return sum(call.waits is None for call in calls)


def observe(blocks: Sequence[nn.Sequential], seen: Seen, begun: list[str]) -> None:
    """Notes what has memory each time that a unit is halfway through its forward or backward, and
    which one has begun: the last is that in which an error occurs."""

    def note(moment: str, k: int) -> None:
        seen[moment].append((k, with_memory(blocks), started()))
        mark(moment)

    def halfway(k: int) -> Callable[..., None]:
        def hook(_: nn.Module, given: Any, output: Tensor) -> None:
            note(IN_FORWARD, k)
            output.register_hook(lambda _: note(IN_BACKWARD, k))

        return hook

    def begins_backward(k: int) -> Callable[..., None]:
        def hook(_: nn.Module, given: Any, output: Tensor) -> None:
            output.register_hook(lambda _: begun.append(f"unit {k} {IN_BACKWARD}"))

        return hook

    for k, block in enumerate(blocks):
        block.register_forward_pre_hook(lambda *_, k=k: begun.append(f"unit {k} {IN_FORWARD}"))
        block.register_forward_hook(begins_backward(k))
        block[1].register_forward_hook(halfway(k))


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
    found: dict[str, Any] = {"y": [], "gradients": [], AT_END: []}
    observe(blocks, seen, begun)
    mark(START)
    slices = subject(list(blocks))
    if not isinstance(slices, list | tuple):
        raise TypeError(f"it returns a {type(slices).__name__}, {NO_SLICES}")
    for each in slices:
        if not isinstance(each, Tensor):
            raise TypeError(f"it returns a list with a {type(each).__name__}, {NO_SLICES}")
    found["built"] = with_memory(blocks)
    found["sizes"] = [each.numel() for each in slices]
    optimizer = torch.optim.SGD(slices, lr=LR)
    model = nn.Sequential(*blocks)
    for inputs, targets in given["batches"]:
        output = model(inputs)
        found["y"].append(output.detach())
        loss_of(output, targets).backward()
        del output
        found[AT_END].append(with_memory(blocks))
        mark_settled(AT_END)
        found["gradients"].append([each.grad for each in slices])
        optimizer.step()
        optimizer.zero_grad()
    if more := case.params.get("more_steps"):

        def one_step() -> None:  # without an update
            loss_of(model(inputs), targets).backward()
            optimizer.zero_grad()

        modules = {f"module {k}": block for k, block in enumerate(blocks)}
        found["grows"] = growth.found_in_more_steps(modules, one_step, more)
    return found | seen


# ---- sizes and budgets ---------------------------------------------------------------------------


def unit_bytes(case: Case) -> list[int]:
    """Bytes of each unit, padded."""
    width, n = case.params["width"], case.world_size
    sizes = [inner * (width + 1) + width * (inner + 1) for inner in case.params["inner"]]
    return [FLOAT_BYTES * n * -(-size // n) for size in sizes]


def held_bytes(case: Case, units: float, slices: float) -> float:
    """Bytes of ``units`` whole units, ``slices`` times this rank's slices of all units, and at most
    each unit's activations and their gradients."""
    sizes = unit_bytes(case)
    widths = 2 * case.params["width"] + 2 * max(case.params["inner"])
    activations = FLOAT_BYTES * SAMPLES * widths * len(sizes)
    return units * max(sizes) + slices * sum(sizes) / case.world_size + activations


def traffic(case: Case) -> Limit | None:
    sizes = sorted(unit_bytes(case))
    if sum(sizes) < BUDGET_FROM_BYTES:
        return None

    def ideal(*exchanged: int) -> float:
        sent = sum(scatter_or_gather_sent_bytes(size, case.world_size) for size in exchanged)
        return sent * int(case.params["batches"])

    # The last unit may stay whole from forward to backward: it is not gathered again.
    return Limit(WITHIN * ideal(*sizes * 3), AT_LEAST * ideal(*sizes * 2, *sizes[:-1]))


def live(label: str, phase: str, units: float, slices: float) -> Budget:
    def limit(case: Case) -> Limit | None:
        is_measured = sum(unit_bytes(case)) >= BUDGET_FROM_BYTES
        return Limit(WITHIN * held_bytes(case, units, slices)) if is_measured else None

    def peaks(run: Run) -> list[int]:
        by_rank = ([p for p in rank.phases if p.name == phase] for rank in run.memory)
        return [max((sum(p.at_peak.values()) for p in each), default=0) for each in by_rank]

    return Budget(label, peaks, limit, f"live {phase}" if phase == AT_END else f"live in {phase}")


def process_memory(moment: str, units: float, slices: float) -> Budget:
    """Minus all parameters (N slices), which the process has at the start."""

    def tensors_bytes(case: Case) -> float | None:
        if sum(unit_bytes(case)) < LARGE_BYTES:
            return None
        return held_bytes(case, units, slices - case.world_size)

    return process_memory_budget(moment, tensors_bytes)


# ---- rules: what each rank was seen to do --------------------------------------------------------


def following(moment: str, k: int, units: int) -> int | None:
    """The unit that computes after unit k."""
    if moment == IN_FORWARD:
        return k + 1 if k + 1 < units else None
    return k - 1 if k > 0 else None


@on_each_rank
def wrong_slices(output: Any, case: Case) -> MistakeText:
    right = [size // FLOAT_BYTES // case.world_size for size in unit_bytes(case)]
    if output["sizes"] != right:
        evidence = f"{output['sizes']} elements, expected {right}"
        return "should return one slice for each unit, of ⌈Ψ/N⌉ elements", evidence
    return None


@on_each_rank
def schedule(output: Any, case: Case) -> MistakeText:
    """The first moment at which the wrong units have memory."""
    if output["built"]:
        return "has whole units before the first forward pass", _listed(output["built"])
    units = len(case.params["inner"])
    for step, left in enumerate(output[AT_END]):
        kept: list[int] = []  # from forward to backward
        for moment in (IN_FORWARD, IN_BACKWARD):
            for k, whole, calls in output[moment][step * units :][:units]:
                if found := _wrong_at(moment, k, whole, units):
                    return found
                after = following(moment, k, units)
                if after is not None and not calls and after not in kept:
                    return (
                        f"has no all-gather under way while a unit computes {moment}, so they do "
                        "not overlap: start the next one before, and wait for it afterwards",
                        f"while unit {k} computes, nothing is started and not waited for",
                    )
            kept = [k for k in whole if moment == IN_FORWARD]
        if left:
            return _left_after_backward(left, output[IN_BACKWARD][step * units :][:units])
    return None


def _wrong_at(moment: str, k: int, whole: list[int], units: int) -> MistakeText:
    after = following(moment, k, units)
    done = [j for j in whole if (j < k if moment == IN_FORWARD else j > k)]
    evidence = f"{_listed(whole)} while unit {k} computes"
    if len(whole) > 2:
        if done:
            return (
                f"has more than two units in memory {moment}, and some have computed already: "
                "free each unit once it has computed",
                evidence,
            )
        return f"has more than two units in memory {moment}: prefetch only the next one", evidence
    if after is not None and after not in whole:
        return (
            f"does not prefetch {moment}: start the next unit's all-gather before the current one "
            "computes",
            f"while unit {k} computes, unit {after} has no memory",
        )
    if done == [0] and moment == IN_FORWARD and k == units - 1 > 1:  # it had been freed before
        return (
            "gathers unit 0 again after it has computed: the last unit has nothing to prefetch "
            "in forward",
            evidence,
        )
    if done and moment == IN_FORWARD:  # in backward it stays until the end, where that is named
        return (
            "has a unit in memory in forward that has computed already: free each unit once it has "
            "computed; only the last may stay whole, from forward to backward",
            evidence,
        )
    return None


def exchanges_late(attempt: Attempt) -> Finding | None:
    """By the order of calls: before a unit computes backward, all units after it have started at
    least one exchange each."""
    run, units = attempt.run, len(attempt.case.params["inner"])
    if run is None or attempt.error is not None:
        return None
    for rank in range(attempt.case.world_size):
        blocks = [each for each in run.traffic.blocks if each.rank == rank]
        moments = [each.start_s for each in blocks if each.label == IN_BACKWARD]
        exchanges = [
            call.start_s
            for call in run.calls
            if call.rank == rank and call.bytes and not call.op.startswith("all_gather")
        ]
        for i, moment in enumerate(moments if exchanges else []):  # none at all: wrong gradients
            complete = i % units
            started = sum(moments[i - complete] < start < moment for start in exchanges)
            if started < complete:
                return Finding(
                    f"rank {rank}",
                    "exchanges the gradients of a unit late: start their reduce-scatter as soon as "
                    "they are complete, before the next unit's backward pass",
                    f"units done with backward: {complete}, exchanges started: {started}",
                )
    return None


def gathers_again(attempt: Attempt) -> Finding | None:
    """Units have different sizes, so the bytes of a call show which one it gathers."""
    case, run = attempt.case, attempt.run
    slices = [size // case.world_size for size in unit_bytes(case)]
    for rank in range(case.world_size):
        calls = [call for call in run.calls if call.rank == rank] if run else []
        for unit, size in enumerate(slices):
            times = sum(call.op.startswith("all_gather") and call.bytes == size for call in calls)
            steps = case.params["batches"] + case.params.get("more_steps", 0)
            if times > 2 * steps:
                return Finding(
                    f"rank {rank}",
                    "gathers a unit more than twice in a step: once is enough for forward, and "
                    "once for backward",
                    f"unit {unit}: {times} all-gathers, and {steps} steps",
                )
    return None


def _left_after_backward(left: list[int], moments: list[Any]) -> tuple[str, str]:
    """``moments``: (k, the units with memory while unit k computes, …) in this backward."""
    *_, before, (_, whole, _) = [(0, left, 0), *moments]
    if again := [j for j in left if j in whole and j not in before[1]]:
        mistake = (
            "gathers a unit again after its backward: unit 0 has no unit to prefetch, and "
            "units[-1] is the last one"
        )
        return mistake, _listed(again)
    return "has whole units after backward: free each one", _listed(left)


def _listed(units: Sequence[int]) -> str:
    if not units:
        return "no unit"
    return f"unit{'s' * (len(units) != 1)} {', '.join(map(str, units))}"


incomplete = raises(
    "take_gradients: backward has not computed",  # raised by the lab's helper
    "takes a unit's gradients when it has none: before backward has computed them all "
    "(register_full_backward_hook can be too early), or a second time",
)
never_waits = raises(
    "free: wait for the all-gather",  # raised by the lab's helper
    "does not wait for one of its all-gathers: it frees a unit whose buffer is still being filled",
)
gathers_twice = raises(
    "start_gather: this unit's all-gather is under way",  # raised by the lab's helper
    "starts a unit's all-gather while an earlier one of the same unit is under way: has_memory "
    "shows that there is one",
)
returns_a_handle = raises(
    "RemovableHandle",
    "has a hook that returns a value: what a forward hook returns replaces the module's output",
)
returns_no_slices = raises(
    NO_SLICES, "should return the list of the units' slices, own", quoted=True
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
        mistake = "takes a slice of a unit's buffer, which is freed: return each unit's own"
    return Finding(f"rank {error.rank}", mistake, where[1] if where else "")


@on_each_rank
def no_gradient(output: Any) -> MistakeText:
    if any(each is None for each in output["gradients"][0]):
        return (
            "returns a slice that has no .grad after backward: return each unit's own, and set its "
            ".grad in backward"
        )
    return None


EXERCISE = OnRanks(
    points=5,
    cases=(
        Case(
            "4 ranks, 3 units, 2 batches",
            4,
            {"width": 5, "inner": [4, 7, 2], "batches": 2, "more_steps": growth.STEPS},
        ),
        Case(
            "5 ranks, one unit of 4 elements",
            5,
            {"width": 1, "inner": [1], "batches": 1},
            weight=0.5,
        ),
        Case(
            "4 ranks, 12 units of 128 KiB",
            4,
            {"width": 256, "inner": [*range(60, 72)], "batches": 1},
            weight=1.5,
        ),
    ),
    inputs=draw_inputs,
    drive=drive,
    tolerance=TOLERANCE,
    budgets=(
        Budget("sends ≤ 1.02 × ideal bytes per rank", sent_bytes, traffic),
        live("two units live in forward", "forward", units=2, slices=1),
        # Two units, and the gradients of one, as flattened and as received.
        live("two units live in backward", "backward", units=4 + 2 * GLOO_THREADS, slices=2),
        live("no unit live afterwards", AT_END, units=0, slices=2),
        process_memory(IN_FORWARD, units=2, slices=1),
        process_memory(IN_BACKWARD, units=4, slices=2),
    ),
    rules=(
        wrong_slices,
        schedule,
        exchanges_late,
        gathers_again,
        *RULES,
        no_barrier,
        keeps_growing,
    ),
    compares_calls=False,  # the last unit may stay whole
    signs=(
        incomplete,
        never_waits,
        gathers_twice,
        returns_a_handle,
        returns_no_slices,
        uses_freed,
        no_gradient,
        NAMED_MISTAKES,
        expensive,
        over_budget(
            "live in forward",
            "has more live in forward than its slices and two units, although the others' "
            "parameters have no memory: what keeps their values?",
        ),
        over_budget(
            "live in backward",
            "has more live in backward than its slices, two units and one unit's gradients: "
            "exchange gradients as soon as they are complete, and keep nothing else",
        ),
        over_budget(
            f"live {AT_END}", "keeps more than its slices and their gradients after backward"
        ),
    ),
    memory=True,
    closed=("torch.distributed.fsdp", "torch.distributed._composable"),
)
