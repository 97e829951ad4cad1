"""Where to cut a row of layers so that it fits a budget.

Layers are alike: each keeps K bytes for backward, its input of B bytes among them.  While segment j
(from 0) is in memory, so are the inputs of the j before it: j·B + K · its layers, at most M.  The
last segment is not computed twice, for backward begins with it; so it is made as long as it can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import numpy as np
import torch.utils.checkpoint as of_torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from autograder.exercise import NAMED, Attempt, Case, OnRanks, Plain, equal
from autograder.exercise.signs import Said, on_each_rank
from autograder.exercises.lab09_activation_checkpointing import shared
from autograder.exercises.lab09_activation_checkpointing.shared import (
    Block,
    Log,
    same_bits,
    sampled,
    step,
    x_bytes,
)
from autograder.guest.on_rank import standing_in

MASK_BYTES = 1


def kept_bytes(case: Case) -> int:
    """K: a layer's input; four times as wide, tanh's output, what dropout leaves, and its mask."""
    of_hidden = shared.FLOAT_BYTES
    if case.params["keep"] < 1:
        of_hidden += shared.FLOAT_BYTES + MASK_BYTES
    return x_bytes(case) + int(
        of_hidden * shared.WIDER * case.params["rows"] * case.params["width"]
    )


def budget_bytes(case: Case) -> int:
    """M, which a case gives as (so many K, and so many B)."""
    of_kept, of_passed = case.params["budget"]
    return int(of_kept * kept_bytes(case) + of_passed * x_bytes(case))


def draw_layers(case: Case, rng: np.random.Generator) -> Plain:
    return {
        "weights": shared.draw_weights(case, rng),
        "x": shared.draw_x(case, rng),
        "seed": shared.draw_seed(rng),
        "kept_bytes": kept_bytes(case),
        "budget_bytes": budget_bytes(case),
    }


# ---- a case -------------------------------------------------------------------------------------


class Held:
    """A tensor for as long as a graph needs it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@contextmanager
def counting(weights: Sequence[Tensor]) -> Iterator[list[int]]:
    """Bytes of storages that graphs hold for backward, each time one more tensor is kept."""
    of_weights = {weight.untyped_storage().data_ptr() for weight in weights}
    alive: WeakSet[Held] = WeakSet()
    held_bytes = [0]

    def keep(tensor: Tensor) -> Held:
        held = Held(tensor)
        alive.add(held)
        storages = [each.tensor.untyped_storage() for each in alive]
        sizes = {storage.data_ptr(): storage.nbytes() for storage in storages}
        held_bytes.append(sum(size for at, size in sizes.items() if at not in of_weights))
        return held

    with saved_tensors_hooks(keep, lambda held: held.tensor):
        yield held_bytes


def checkpoint(function: Callable[..., Any], *args: Any) -> Any:
    """A slip in the exercise before costs nothing here."""
    return of_torch.checkpoint(function, *args, use_reentrant=True)


def sequential_step(
    run: Callable[[list[Block], Tensor], Tensor], given: Any, case: Case
) -> dict[str, Any]:
    def network(layers: list[Block], ends: list[Tensor]) -> list[Tensor]:
        return [run(layers, ends[0])]

    # a sum: it keeps nothing for backward
    return step(network, given, case, loss_of=Tensor.sum, saving=counting)


def one_after_the_other(layers: list[Block], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


def cut_of(log: Log, again: Log) -> list[int]:
    """Lengths of the segments that were run again, the first of them first, and of the rest."""
    lengths: list[int] = []
    for before, run in zip([None, *again], again, strict=False):
        if before is None or run["block"] != before["block"] + 1:
            lengths.insert(0, 0)
        lengths[0] += 1
    first_runs = len(log) - len(again)
    return [*lengths, first_runs - len(again)]


def drive(subject: Callable[..., Any], given: Any, case: Case) -> Plain:
    standing_in(subject, checkpoint=checkpoint)

    def through(layers: list[Block], x: Tensor) -> Tensor:
        y: Tensor = subject(layers, x, given["kept_bytes"], given["budget_bytes"])
        return y

    try:
        ours = sequential_step(through, given, case)
    except ValueError as error:
        return {"refused": True, "says": str(error)}
    plain = sequential_step(one_after_the_other, given, case)
    peak_bytes = max(ours["saved"])
    return sampled(ours) | {
        "refused": False,
        "bit for bit": same_bits(ours, plain),
        "computed again": len(ours["again"]),
        "within the budget": peak_bytes <= given["budget_bytes"],
        "kept": peak_bytes,
        "cut": cut_of(ours["log"], ours["again"]),
    }


# ---- signs --------------------------------------------------------------------------------------


@on_each_rank
def refuses(output: Any, rank: int, attempt: Attempt) -> Said:
    refused, wanted = output["refused"], attempt.expected[rank]["refused"]
    if refused and not wanted:
        return "raises ValueError though there is a cut that fits", output["says"]
    if wanted and not refused:
        return "should raise ValueError where no cut fits the budget"
    return None


@on_each_rank
def wrong_cut(output: Any, rank: int, attempt: Attempt) -> Said:
    if output["refused"]:
        return None
    given, layers = attempt.inputs[rank], attempt.case.params["blocks"]
    again, wanted = output["computed again"], attempt.expected[rank]["computed again"]
    evidence = (
        f"segments of {output['cut']} layers compute {again} of them twice and hold "
        f"{output['kept']:,} of {given['budget_bytes']:,} bytes; a cut that fits computes {wanted} "
        "twice"
    )
    if output["within the budget"] and again == wanted:
        return None
    if again == 0:
        said = "never computes a layer again: everything is kept, whatever the budget"
    elif again > layers:
        said = "computes layers more than twice: no checkpoint within another"
    elif again == layers:
        said = (
            "computes the last segment twice as well: backward begins with it, so it can keep what "
            "it makes"
        )
    elif output["within the budget"]:
        said = (
            "computes more layers twice than it must: the last segment is computed once, so let it "
            "be as long as fits"
        )
    elif max(output["cut"]) * given["kept_bytes"] <= given["budget_bytes"]:
        said = (
            "forgets the stored inputs: while a segment is at work, those of the segments before "
            "it are held too"
        )
    else:
        said = "goes over the budget: a segment is too long"
    return said, evidence


@on_each_rank
def other_bits(output: Any, rank: int, attempt: Attempt) -> Said:
    if output["refused"] or output["bit for bit"]:
        return None
    if not equal(attempt.expected[rank]["outputs"], output["outputs"], shared.NEAR):
        return "does not run every layer once, in their order"
    return "gives gradients that differ from those without checkpointing"


def layers_case(
    name: str,
    blocks: int,
    budget: tuple[int, int],
    rows: int = 64,
    width: int = 16,
    keep: float = 1.0,
    weight: float = 1.0,
) -> Case:
    """``budget``: so many times what a layer keeps, and so many times what it passes on."""
    params = {"blocks": blocks, "rows": rows, "width": width, "keep": keep, "budget": list(budget)}
    return Case(name, 1, params, weight=weight)


EXERCISE = OnRanks(
    points=5,
    cases=(
        layers_case("10 layers, room for 4 and their inputs", 10, (4, 3)),
        layers_case("8 layers, room for 3 and nothing more", 8, (3, 0)),
        layers_case("6 layers, room for all", 6, (6, 0), rows=8, width=4, weight=0.5),
        layers_case("4 layers, room for none", 4, (0, 3), rows=8, width=4, weight=0.5),
    ),
    inputs=draw_layers,
    drive=drive,
    tolerance=shared.NEAR,
    allows=frozenset(),
    signs=(refuses, NAMED, wrong_cut, other_bits),
)
