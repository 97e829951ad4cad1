"""Where to cut a row of layers so that it fits a budget.

Layers are alike: each keeps K bytes for backward, its input of B bytes among them.  While segment j
(from 0) is in memory, so are the inputs of the j before it: j·B + K · its layers, at most M.  The
last segment is not computed twice, for backward begins with it; so it is made as long as it can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np
import torch.utils.checkpoint as of_torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from autograder.exercise import Attempt, Case, OnRanks, Plain, equal
from autograder.exercise.signs import Said, on_each_rank
from autograder.exercises.lab09_activation_checkpointing import shared
from autograder.exercises.lab09_activation_checkpointing.networks import plain_step
from autograder.exercises.lab09_activation_checkpointing.shared import results, same_bits, step
from autograder.guest.on_rank import standing_in


def kept_bytes(case: Case) -> int:
    """K: a layer's input; four times as wide, tanh's output, what dropout leaves, and its mask."""
    wide_bytes = shared.WIDER * shared.x_bytes(case)
    dropped_bytes = wide_bytes + wide_bytes // shared.FLOAT_BYTES if case.params["keep"] < 1 else 0
    return shared.x_bytes(case) + wide_bytes + dropped_bytes


def budget_bytes(case: Case) -> int:
    """M, which a case gives as (so many K, and so many B)."""
    of_kept, of_passed = case.params["budget"]
    return int(of_kept * kept_bytes(case) + of_passed * shared.x_bytes(case))


def draw_layers(case: Case, rng: np.random.Generator) -> Plain:
    return {
        "weights": shared.draw_weights(case, rng),
        "x": shared.draw_x(case, rng),
        "seed": int(rng.integers(1, 2**31)),
        "kept_bytes": kept_bytes(case),
        "budget_bytes": budget_bytes(case),
    }


@contextmanager
def counting(weights: Sequence[Tensor]) -> Iterator[list[int]]:
    """Bytes of storages that graphs hold for backward, each time one more tensor is kept."""
    of_weights = {weight.untyped_storage().data_ptr() for weight in weights}
    alive: WeakSet[Callable[[], Tensor]] = WeakSet()
    held_bytes = [0]

    def keep(tensor: Tensor) -> Callable[[], Tensor]:
        def held() -> Tensor:
            return tensor

        alive.add(held)
        storages = [each().untyped_storage() for each in alive]
        sizes = {storage.data_ptr(): storage.nbytes() for storage in storages}
        held_bytes.append(sum(size for at, size in sizes.items() if at not in of_weights))
        return held

    with saved_tensors_hooks(keep, lambda held: held()):
        yield held_bytes


HOW: Any = {"loss_of": Tensor.sum, "saving": counting}  # a sum keeps nothing for backward


def cut_of(log: shared.Log, again: shared.Log) -> list[int]:
    """Lengths of the segments that were run again, the first of them first, and of the rest."""
    lengths: list[int] = []
    for before, run in zip([None, *again], again, strict=False):
        if before is None or run["block"] != before["block"] + 1:
            lengths.insert(0, 0)
        lengths[0] += 1
    return [*lengths, len(log) - 2 * len(again)]


def drive(subject: Callable[..., Any], given: Any, case: Case) -> Plain:
    # A mistake in the exercise before costs nothing here.
    standing_in(subject, checkpoint=partial(of_torch.checkpoint, use_reentrant=True))

    def network(layers: shared.Blocks, arguments: list[Tensor], *_: Any) -> list[Tensor]:
        return [subject(layers, arguments[0], given["kept_bytes"], given["budget_bytes"])]

    try:
        ours = step(network, given, case, **HOW)
    except ValueError as error:
        return {"refused": True, "says": str(error)}
    peak_bytes = max(ours["saved"])
    return results(ours, case) | {
        "refused": False,
        "bit for bit": same_bits(ours, plain_step(given, case, **HOW)),
        "computed again": len(ours["again"]),
        "within the budget": peak_bytes <= given["budget_bytes"],
        "kept": peak_bytes,
        "cut": cut_of(ours["log"], ours["again"]),
    }


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
    given, layers = attempt.inputs[rank], attempt.case.params["blocks"]
    again, wanted = output["computed again"], attempt.expected[rank]["computed again"]
    evidence = (
        f"segments of {output['cut']} layers hold {output['kept']:,} of {given['budget_bytes']:,} "
        f"bytes and compute {again} layers twice; {wanted} would do"
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
    elif set(output["cut"][:-1]) == {round(layers**0.5)}:
        said = "cuts into √n segments whatever the budget"
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
def wrong_order(output: Any, rank: int, attempt: Attempt) -> Said:
    if equal(attempt.expected[rank]["outputs"], output["outputs"], shared.NEAR):
        return None
    return "does not run every layer once, in their order"


EXERCISE = OnRanks(
    points=5,
    cases=(  # "budget": so many times what a layer keeps, and so many times what it passes on
        shared.blocks_case("10 layers, room for 4 and their inputs", 1, 10, 64, 16, budget=(4, 3)),
        shared.blocks_case("8 layers, room for 3 and nothing more", 1, 8, 64, 16, budget=(3, 0)),
        shared.blocks_case("6 layers, room for all", 1, 6, 8, 4, weight=0.5, budget=(6, 0)),
        shared.blocks_case("4 layers, room for none", 1, 4, 8, 4, weight=0.5, budget=(0, 3)),
    ),
    inputs=draw_layers,
    drive=drive,
    tolerance=shared.NEAR,
    allows=frozenset(),
    signs=(refuses, wrong_cut, wrong_order),
)
