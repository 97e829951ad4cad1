"""Lab 09, checkpoint_sequential: where to cut a row of layers so that it fits a budget.

Layers are alike: each keeps K bytes for backward, its input of B bytes among them.  While segment j
(from 0) is in memory, so are the inputs of the j before it: j·B + K · its layers, at most M.  The
last segment is not computed twice, for backward begins with it; so it is made as long as it can be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils.checkpoint as of_torch
from torch import Tensor

from autograder.exercise import Attempt, Case, Exercise, Finding, Plain
from autograder.exercise.compare import equal
from autograder.exercise.kept_back import by_case, kept_back
from autograder.exercises.checkpointing import (
    FLOAT_BYTES,
    NEAR,
    WIDER,
    Block,
    Log,
    blocks_of,
    draw_seed,
    draw_weights,
    draw_x,
    drawing_from,
    everyone,
    finished,
    leaves,
    same_bits,
    samples,
)
from autograder.guest.on_rank import standing_in

MASK_BYTES = 1


# ---- sizes --------------------------------------------------------------------------------------


def passed_bytes(case: Case) -> int:
    """B: of x, and of what each layer passes on."""
    return int(FLOAT_BYTES * case.params["rows"] * case.params["width"])


def kept_bytes(case: Case) -> int:
    """K: a layer's input; four times as wide, tanh's output, what dropout leaves, and its mask."""
    of_hidden = FLOAT_BYTES + ((FLOAT_BYTES + MASK_BYTES) if case.params["keep"] < 1 else 0)
    return passed_bytes(case) + of_hidden * WIDER * case.params["rows"] * case.params["width"]


def budget_bytes(case: Case) -> int:
    """M, which a case gives as (so many K, and so many B)."""
    of_kept, of_passed = case.params["budget"]
    return int(of_kept * kept_bytes(case) + of_passed * passed_bytes(case))


@kept_back(by_case)
def right_cut(case: Case) -> list[int] | None:
    """Layers of each segment, the last of which is computed once; None: nothing fits."""
    layers: int = case.params["blocks"]
    room: list[int] = []
    while sum(room) < layers:
        fits = (budget_bytes(case) - len(room) * passed_bytes(case)) // kept_bytes(case)
        if fits < 1:
            return None
        room.append(fits)
    cut, left = [], max(0, layers - room[-1])
    for fits in room[:-1]:
        cut.append(min(fits, left))
        left -= cut[-1]
    return [*cut, layers - sum(cut)]


def held_bytes(case: Case, cut: Sequence[int]) -> int:
    """The most that the segments of a cut hold, one after the other."""
    held = [
        number * passed_bytes(case) + layers * kept_bytes(case) for number, layers in enumerate(cut)
    ]
    return max(held)


# ---- a case -------------------------------------------------------------------------------------


class Kept:
    """Bytes of storages that graphs hold for backward, now and at most.

    Weights do not count.  To be entered around forward and backward together.
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self.weights = {weight.untyped_storage().data_ptr() for weight in weights}
        self.holders: dict[int, int] = {}  # of each storage, by its address
        self.now_bytes = self.peak_bytes = 0
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.keep, lambda held: held.tensor)

    def keep(self, tensor: Tensor) -> Any:
        return Held(self, tensor)

    def change(self, tensor: Tensor, by: int) -> None:
        storage = tensor.untyped_storage()
        at, before = storage.data_ptr(), self.holders.get(storage.data_ptr(), 0)
        if at in self.weights:
            return
        self.holders[at] = before + by
        if 0 in (before, before + by):
            self.now_bytes += by * storage.nbytes()
            self.peak_bytes = max(self.peak_bytes, self.now_bytes)


class Held:
    """A tensor for as long as a graph needs it."""

    def __init__(self, kept: Kept, tensor: Tensor) -> None:
        self.kept, self.tensor = kept, tensor
        kept.change(tensor, 1)

    def __del__(self) -> None:
        self.kept.change(self.tensor, -1)


def checkpoint(function: Callable[..., Any], *args: Any) -> Any:
    """A slip in the exercise before costs nothing here."""
    return of_torch.checkpoint(function, *args, use_reentrant=True)


def draw_layers(case: Case, rng: np.random.Generator) -> list[Plain]:
    return [
        {
            "weights": draw_weights(case, rng),
            "x": draw_x(case, rng),
            "seed": draw_seed(rng),
            "kept_bytes": kept_bytes(case),
            "budget_bytes": budget_bytes(case),
        }
    ]


def step(given: Any, case: Case, run: Callable[[list[Block], Tensor], Tensor]) -> dict[str, Any]:
    """Forward by ``run``, and backward."""
    log: Log = []
    pairs = leaves(given["weights"])
    weights = [tensor for pair in pairs for tensor in pair]
    x = given["x"].clone().requires_grad_()
    kept = Kept(weights)
    with drawing_from(given["seed"]), kept.hooks:
        y = run(blocks_of(pairs, case.params["keep"], log), x)
        after_forward = len(log)
        y.sum().backward()
    values = [y, x.grad, *(weight.grad for weight in weights)]
    return {"values": values, "log": log, "again": log[after_forward:], "kept": kept.peak_bytes}


def one_after_the_other(layers: list[Block], x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


def drive_sequential(subject: Callable[..., Any], given: Any, case: Case) -> Plain:
    standing_in(subject, checkpoint=checkpoint)

    def through(layers: list[Block], x: Tensor) -> Tensor:
        y: Tensor = subject(layers, x, given["kept_bytes"], given["budget_bytes"])
        return y

    try:
        ours = step(given, case, through)
    except ValueError as error:
        return {"refused": True, "says": str(error)}
    plain = step(given, case, one_after_the_other)
    values = ours["values"]
    return {
        "refused": False,
        "values": samples(values),
        "bit for bit": same_bits(values, plain["values"]),
        "computed again": len(ours["again"]),
        "within the budget": ours["kept"] <= given["budget_bytes"],
        "kept": ours["kept"],
        "cut": cut_of(ours["log"], ours["again"]),
        "log": ours["log"],
    }


def cut_of(log: Log, again: Log) -> list[int]:
    """Lengths of the segments that were run again, the first of them first, and of the rest."""
    lengths: list[int] = []
    for before, run in zip([None, *again], again, strict=False):
        if before is None or run["block"] != before["block"] + 1:
            lengths.insert(0, 0)
        lengths[0] += 1
    first_runs = len(log) - len(again)
    return [*lengths, first_runs - len(again)]


def expect_sequential(case: Case, inputs: Any) -> list[Plain]:
    cut = right_cut(case)
    if cut is None:
        return [{"refused": True}]
    values = step(inputs[0], case, one_after_the_other)["values"]
    return [
        {
            "refused": False,
            "values": samples(values),
            "computed again": sum(cut[:-1]),
            "within the budget": True,
            "bit for bit": True,
        }
    ]


# ---- mistakes by their names --------------------------------------------------------------------


def refuses(attempt: Attempt) -> Finding | None:
    for output in finished(attempt):
        wanted = attempt.expected[0]["refused"]
        if output["refused"] and not wanted:
            return everyone("raises ValueError though there is a cut that fits", output["says"])
        if wanted and not output["refused"]:
            return everyone("should raise ValueError where no cut fits the budget")
    return None


def wrong_cut(attempt: Attempt) -> Finding | None:
    wanted = right_cut(attempt.case)
    for output in finished(attempt):
        if output["refused"] or wanted is None:
            continue
        again = output["computed again"]
        if output["within the budget"] and again == sum(wanted[:-1]):
            continue
        mistake = name_wrong_cut(attempt.case, output["cut"], again, wanted)
        return everyone(mistake, f"segments of {output['cut']} layers; {wanted} would do")
    return None


def name_wrong_cut(case: Case, cut: list[int], again: int, wanted: list[int]) -> str:
    layers = case.params["blocks"]
    over = held_bytes(case, cut) > budget_bytes(case)
    if again == 0:
        return "never computes a layer again: everything is kept, whatever the budget"
    if again > layers:
        return "computes layers more than twice: no checkpoint within another"
    if again == layers:
        return (
            "computes the last segment twice as well: backward begins with it, so it can keep what "
            "it makes"
        )
    root = round(layers**0.5)
    if set(cut[:-1]) == {root} and len(wanted) != len(cut):
        return "cuts into √n segments whatever the budget"
    if over and max(cut) * kept_bytes(case) <= budget_bytes(case):
        return (
            "forgets the stored inputs: while a segment is at work, those of the segments before "
            "it are held too"
        )
    if over:
        return "goes over the budget: a segment is too long"
    return (
        "computes more layers twice than it must: the last segment is computed once, so let it be "
        "as long as fits"
    )


def other_bits(attempt: Attempt) -> Finding | None:
    for output in finished(attempt):
        if not output["refused"] and not output["bit for bit"]:
            wanted = attempt.expected[0]["values"]
            if not equal(wanted[0], output["values"][0], NEAR):
                return everyone("does not run every layer once, in their order")
            return everyone("gives gradients that differ from those without checkpointing")
    return None


def layers_case(
    name: str,
    blocks: int,
    budget: tuple[int, int],
    rows: int = 64,
    width: int = 16,
    keep: float = 1.0,
    hidden: bool = False,
    weight: float = 1.0,
) -> Case:
    """``budget``: so many times what a layer keeps, and so many times what it passes on."""
    params = {"blocks": blocks, "rows": rows, "width": width, "keep": keep, "budget": list(budget)}
    return Case(name, 1, params, hidden, weight)


CHECKPOINT_SEQUENTIAL = Exercise(
    name="activation_checkpointing.checkpoint_sequential",
    points=5,
    cases=(
        layers_case("10 layers, room for 4 and their inputs", 10, (4, 3)),
        layers_case("8 layers, room for 3 and nothing more", 8, (3, 0)),
        layers_case("6 layers, room for all", 6, (6, 0), rows=8, width=4, weight=0.5),
        layers_case("4 layers, room for none", 4, (0, 3), rows=8, width=4, weight=0.5),
        layers_case("16 layers, dropout", 16, (5, 2), keep=0.8, hidden=True),
        layers_case("13 layers, dropout, tight", 13, (3, 1), keep=0.7, rows=50, hidden=True),
        layers_case("20 layers, much room", 20, (12, 0), rows=40, hidden=True),
    ),
    draw=draw_layers,
    drive=drive_sequential,
    expect=expect_sequential,
    tolerance=NEAR,
    allows=frozenset(),
    diagnoses=(refuses, wrong_cut, other_bits),
)
