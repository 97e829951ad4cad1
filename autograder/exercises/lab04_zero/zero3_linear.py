"""Stage 3: a linear layer that is whole only while it computes."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from autograder.exercise import NAMED_MISTAKES, Attempt, Budget, Case, OnRanks, Plain
from autograder.exercise.signs import MistakeText, is_over, keeps_growing, on_each_rank, raises
from autograder.exercises.common import linear_of
from autograder.exercises.lab04_zero import shared
from autograder.exercises.lab04_zero.shared import (
    AT_END,
    held_bytes,
    mark_settled,
    with_reference_bounds,
)
from autograder.guest import growth
from autograder.guest.moments import START, mark, mark_in_backward
from shardlab.run import Run

BUILT = "after building"
IN_FORWARD, IN_BACKWARD = "between units in forward", "between units in backward"


def returns_a_tensor(unit: nn.Module, given: Any, output: Any) -> None:
    if not isinstance(output, Tensor):
        raise TypeError(f"forward returned {output!r:.50}, not a tensor: is a return missing?")


def drive(subject: Any, given: Any, case: Case) -> Plain:
    subject = with_reference_bounds(subject, case)
    layers = given.pop("layers")
    mark(START)
    units: list[nn.Module] = []
    while layers:
        units += [subject(linear_of(layers.pop(0), layers.pop(0))), nn.Tanh()]
    model = nn.Sequential(*units[:-1])
    for unit in units[::2]:
        unit.register_forward_hook(returns_a_tensor)
    for unit in units[1:-1:2]:
        unit.register_forward_hook(lambda *_: mark(IN_FORWARD))
        mark_in_backward(unit, IN_BACKWARD)
    mark(BUILT)
    inputs = [x.requires_grad_() for x, _ in given["batches"]]
    outputs = [model(x) for x in inputs]
    for y, (_, upstream) in zip(outputs, given["batches"], strict=True):
        y.backward(upstream)
    mark_settled(AT_END)
    slices = []
    for unit in units[::2]:
        gradients = [parameter.grad for parameter in unit.parameters()]
        slices.append(gradients[0] if len(gradients) == 1 else f"{len(gradients)} parameters")
    gradients = [x.grad for x in inputs]
    found = {"y": [y.detach() for y in outputs], "x.grad": gradients, "slices": slices}
    layers = {f"layer {k}": unit for k, unit in enumerate(units[::2])}
    steps = case.params.get("more_steps", 0)
    x, upstream = given["batches"][0]
    grows = growth.found_in_more_passes(layers, model, x, upstream, steps)
    return found | {"grows": grows}


def live(label: str, phase: str, units: int, slices: int) -> Budget:
    """At most ``units`` whole units, ``slices`` times all slices, and the activations."""

    def most(case: Case) -> float:
        # At most each layer's output, its tanh and their gradients.
        values = 4 * sum(case.params["widths"]) * case.params.get("samples", 2)
        return held_bytes(case, units, slices) + shared.FLOAT_BYTES * values

    def peaks(run: Run) -> list[int]:
        by_rank = ([p for p in rank.phases if p.name == phase] for rank in run.memory)
        return [max((sum(p.at_peak.values()) for p in each), default=0) for each in by_rank]

    return shared.live(label, phase if phase == AT_END else f"live in {phase}", peaks, most)


emptied = raises(
    "out of bounds for storage of size 0",
    "uses a tensor whose storage was emptied: gather the unit again in backward",
)


@on_each_rank
def no_gradient(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    sizes = shared.unit_elements(attempt.case)[::-1]
    for got, size in zip(output["slices"], sizes, strict=True):
        if isinstance(got, str):
            return "should have one parameter per unit: its slice", got
        if got is None:
            return (
                "ends without a gradient in its slice: your backward should return it, because "
                "autograd does not differentiate collectives"
            )
        if got.numel() != (right := shared.slice_elements(size, attempt.case)):
            mistake = "has a parameter of the wrong length: a slice has ⌈Ψ/N⌉ elements"
            return mistake, f"{got.numel():,}, expected {right:,}"
    return None


@on_each_rank
def keeps_units(output: Any, rank: int, attempt: Attempt) -> MistakeText:
    for phase in ("forward", "backward"):
        if attempt.run and rank in is_over(attempt, f"live in {phase}"):
            built = sum(attempt.run.memory[rank].at(BUILT).values())
            if built > held_bytes(attempt.case, units=1):
                return (
                    "keeps more than its slices from the start: if a slice is a view, its whole "
                    "tensor stays alive"
                )
            return f"has more live in {phase} than one unit: free each before gathering the next"
    if rank in is_over(attempt, AT_END):
        return "keeps more than its slices and their gradients after backward"
    return None


EXERCISE = OnRanks(
    answer="Zero3Linear",
    points=5,
    cases=(
        Case("4 ranks, one layer", 4, {"widths": [6, 5], "samples": 3}),
        Case(
            "3 ranks, 3 layers, 2 batches",
            3,
            {"widths": [4, 7, 5, 2], "batches": 2, "more_steps": growth.STEPS},
        ),
        Case("4 ranks, 8 layers of 256 KiB", 4, {"widths": [256] * 9}, weight=2),
    ),
    inputs=shared.draw_inputs,
    drive=drive,
    tolerance=shared.TOLERANCE,
    budgets=(
        # Each unit is gathered in forward and in backward, and its gradients reduce-scattered.
        shared.traffic(lambda case: shared.unit_bytes(case) * 3),
        live("one unit live in forward", "forward", units=1 + shared.GLOO_THREADS, slices=1),
        # Two for the current unit: itself and its gradient, or its gradient sent and received.
        live("one unit live in backward", "backward", units=2 + 2 * shared.GLOO_THREADS, slices=2),
        live("no unit live afterwards", AT_END, units=0, slices=2),
        # Minus all parameters (N slices), which the process has at the start.
        shared.process_memory(IN_FORWARD, lambda case: held_bytes(case, 1, 1 - case.world_size)),
        shared.process_memory(IN_BACKWARD, lambda case: held_bytes(case, 2, 2 - case.world_size)),
    ),
    rules=(*shared.RULES, keeps_growing),
    signs=(
        shared.unpadded,
        emptied,
        no_gradient,
        NAMED_MISTAKES,
        shared.expensive,
        keeps_units,
    ),
    memory=True,
)
