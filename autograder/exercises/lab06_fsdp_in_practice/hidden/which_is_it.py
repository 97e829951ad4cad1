import json
from collections.abc import Callable, Iterable
from typing import Any

from autograder.exercise import Case, questions
from autograder.exercise.hidden import EquivalentAnswer
from autograder.exercises.lab06_fsdp_in_practice.hidden.record_traces import (
    DDP,
    FSDP,
    HIDDEN,
    HSDP,
    KEPT,
    OF_CASES,
    TP,
    ZERO2,
)
from autograder.exercises.lab06_fsdp_in_practice.which_is_it import VISIBLE
from shardlab.recorded_runs import step_traces
from shardlab.recorded_runs.step_traces import Trace

RECORDED = step_traces.load(HIDDEN)


def of_case(case: str) -> Case:
    return questions(case, *((RECORDED[f"{case}: {name}"][1],) for name in OF_CASES[case]))


CASES = tuple(map(of_case, OF_CASES))
BOUNDARIES = {
    "divides": "one of each method",
    "does not divide": "one of each method",
    "one rank": "not tested: one rank sends nothing",
    "more ranks than elements": "not tested: no method is used there",
    "one unit": "six methods, with a single unit",
    "more activations than parameters": "six methods, with a single unit",
    "small calls of almost a tenth of the parameters": (
        "the same operations, used for something else"
    ),
    "most parameters in the root": "the same operations, used for something else",
    "resharded to a smaller group": "the same operations, used for something else",
}
_METHOD_OF = {
    json.dumps(trace): method for method, trace in (*VISIBLE.values(), *RECORDED.values())
}


def right(trace: Trace) -> str:
    """The method of the run that the trace was recorded from."""
    return _METHOD_OF[json.dumps(trace)]


Wrong = Callable[[Trace], str | None]


def takes(methods: Iterable[str], for_method: str) -> Wrong:
    """Answers ``for_method`` where one of ``methods`` is right."""
    return lambda trace: for_method if right(trace) in methods else None


def by_operations(
    trace: Trace, none: str = DDP, kept: str = FSDP, phases: bool = False
) -> str | None:
    """From the names of the operations alone, or from their phases too, but from no size."""
    found = {(call["op"], call["phase"] if phases else "") for call in trace["calls"]}
    ops = {op for op, _ in found}
    if phases and ("all_reduce", "forward") in found:
        return TP
    if ops == {"all_gather", "reduce_scatter", "all_reduce"}:
        return HSDP
    if ops == {"all_gather", "reduce_scatter"}:
        return KEPT if phases and ("all_gather", "backward") not in found else kept
    return ZERO2 if "all_gather" in ops else none


def by(**how: Any) -> Wrong:
    return lambda trace: by_operations(trace, **how)


def with_all_ranks(trace: Trace) -> str | None:
    """As if each all-gather brought together slices of all ranks."""
    gathers = (call["bytes"] for call in trace["calls"] if call["op"] == "all_gather")
    whole = {each * trace["world_size"] for each in gathers}
    return TP if trace["activation_bytes"] in whole else None


def by_the_step(trace: Trace) -> str | None:
    """Takes any gather in the step for that of the parameters."""
    found = any((call["op"], call["phase"]) == ("all_gather", "step") for call in trace["calls"])
    return ZERO2 if found else None


def with_large_gathers(trace: Trace) -> str | None:
    """Of TP: as if its gathers were of parameters."""
    gathers = (call for call in trace["calls"] if call["op"] == "all_gather")
    phases = {call["phase"] for call in gathers if call["bytes"] > 100}
    found = FSDP if "backward" in phases else KEPT if "forward" in phases else DDP
    return found if right(trace) == TP else None


SHARDED = (FSDP, KEPT, HSDP)
MISTAKES: dict[str, Wrong | tuple[Wrong, ...]] = {
    "multiplies a slice by world_size: an all-gather brings together the slices of the ranks in "
    "its group": with_all_ranks,
    "takes FSDP for TP: the slices that all ranks gather together make up the whole model, so they "
    "are parameters, and each rank computes whole layers on its own samples": (
        takes(SHARDED, TP),
        takes((FSDP, KEPT), TP),
    ),
    "takes a small gather in the step for that of the parameters: what is gathered in the step is "
    "a small part of Ψ, unless it is ZeRO-2": by_the_step,
    "misses TP: activation_bytes is the size of a whole tensor that it all-reduces, "
    "reduce-scatters, or gathers from the slices of its group": (
        with_large_gathers,
        *(takes((TP,), method) for method in (DDP, ZERO2, *SHARDED)),
    ),
    "misses HSDP's all-reduce: each rank's slices of the gradients are summed across the groups, "
    "in a call for each unit, which may be small by itself": (
        takes((HSDP,), FSDP),
        takes((HSDP,), KEPT),
    ),
    "takes ZeRO-2 for FSDP: it gathers the updated parameters in the step; FSDP gathers them in "
    "forward, before it uses them": (takes((ZERO2,), KEPT), takes((ZERO2,), FSDP)),
    "takes DDP for another method: what it gathers in all is a small part of Ψ, so it is not the "
    "parameters": tuple(takes((DDP,), method) for method in SHARDED),
    "takes FSDP for FSDP without resharding: it gathers again in backward what it freed after "
    "forward, which is less than half of Ψ if most parameters are in the root, and in a smaller "
    "group if it reshards to one": takes((FSDP,), KEPT),
    "takes FSDP without resharding for FSDP: it gathers nothing in backward, and in forward all "
    "parameters for each micro-batch": takes((KEPT,), FSDP),
    "takes FSDP for HSDP: a smaller group may also gather again what FSDP has resharded to it; "
    "HSDP all-reduces slices of the gradients across groups": takes((FSDP,), HSDP),
    "names the method by its operations without their sizes: the same operation may send "
    "parameters, gradients, activations, or small values for a log": (
        by(),
        by(none=TP),
        by(kept=KEPT),
        by(phases=True),
    ),
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        'if ("all_reduce", "backward") in large:',
        'if any((c["op"], c["phase"]) == ("all_reduce", "backward") for c in trace["calls"]):',
        "the task says that no small call is in backward",
    ),
    EquivalentAnswer(
        'size > trace["parameter_bytes"] / 10',
        'size >= trace["parameter_bytes"] / 10',
        "no sum is exactly that part of Ψ",
    ),
    EquivalentAnswer(
        'size > trace["parameter_bytes"] / 10',
        'size >= trace["parameter_bytes"] / 9',
        "any part between the small calls and what a method sends",
    ),
    EquivalentAnswer(
        'size > trace["parameter_bytes"] / 10',
        'size > trace["parameter_bytes"] / 11',
        "any part between the small calls and what a method sends",
    ),
)
