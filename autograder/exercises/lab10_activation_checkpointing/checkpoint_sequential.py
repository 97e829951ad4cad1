"""Where to cut a chain of layers so that it fits a budget.

All layers are equal: each keeps kept_bytes for backward, including its input of input_bytes.  While
segment j (from 0) is in memory, so are the inputs of the j segments before it:
j · input_bytes + its layers · kept_bytes ≤ budget_bytes.
The last segment is computed only once, since backward starts with it, so it is as long as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import numpy as np
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from autograder.exercise import NAMED_MISTAKES, Attempt, Case, Finding, OnRanks, Plain
from autograder.exercise.signs import MistakeText, on_each_rank, raises
from autograder.exercises.lab10_activation_checkpointing import shared, signs
from autograder.exercises.lab10_activation_checkpointing.networks import plain_step
from autograder.exercises.lab10_activation_checkpointing.shared import (
    BITS,
    RUNS,
    Blocks,
    Log,
    results,
    same_bits,
    step,
)
from autograder.guest.closed_modules import CLOSED
from autograder.guest.on_rank import with_functions_replaced
from shardlab.errors import RankError

NOT_THE_OUTPUT = "not the output of the last layer"
CHANGES_THE_LIST = "changes the list of layers: it should stay as it is"


def kept_bytes(case: Case) -> int:
    """A layer's input; and four times as wide, the outputs of tanh and dropout, and its mask."""
    wide_bytes = shared.WIDER * shared.x_bytes(case)
    dropped_bytes = (
        wide_bytes + wide_bytes // shared.dtype_of(case).itemsize if case.params["keep"] < 1 else 0
    )
    return shared.x_bytes(case) + wide_bytes + dropped_bytes


def budget_bytes(case: Case) -> int:
    """A case gives it as (multiple of kept_bytes, multiple of the input's bytes)."""
    of_kept, of_input = case.params["budget"]
    return int(of_kept * kept_bytes(case) + of_input * shared.x_bytes(case))


def draw_layers(case: Case, rng: np.random.Generator) -> Plain:
    return {
        "weights": shared.draw_weights(case, rng),
        "x": shared.draw_x(case, rng),
        "seed": int(rng.integers(1, 2**31)),
        "kept_bytes": kept_bytes(case),
        "budget_bytes": budget_bytes(case),
    }


@contextmanager
def count_saved_bytes(weights: Sequence[Tensor]) -> Iterator[list[int]]:
    """Bytes of the storages that graphs hold for backward, recorded whenever a tensor is saved."""
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


# A sum saves nothing for backward.
STEP_OPTIONS: Any = {"loss_of": Tensor.sum, "saving": count_saved_bytes}


def cut_of(log: Log, again: Log) -> list[int]:
    """Lengths of the segments: those that were recomputed, in order, then the rest."""
    lengths: list[int] = []
    for before, run in zip([None, *again], again, strict=False):
        if before is None or run["block"] != before["block"] + 1:
            lengths.insert(0, 0)
        lengths[0] += 1
    rest = len(log) - 2 * len(again)
    return [*lengths, rest] if rest > 0 else lengths


def in_words(cut: Sequence[int]) -> str:
    """ "segments of 4, 2 and 4 layers"."""
    if not cut:
        return "no layers"
    *first, last = map(str, cut)
    lengths = f"{', '.join(first)} and {last}" if first else last
    return f"segment{'s' * bool(first)} of {lengths} layers"


def drive(subject: Callable[..., Any], given: Any, case: Case) -> Plain:
    segments: list[list[list[int]]] = []  # of each call of checkpoint: the layers of each run
    log: Log = []

    def recorded(function: Callable[..., Any], *args: Any) -> Any:
        runs: list[list[int]] = []
        segments.append(runs)

        def run(*args: Any) -> Any:
            before = len(log)
            output = function(*args)
            runs.append([each["block"] for each in log[before:]])
            return output

        return checkpoint(run, *args, use_reentrant=True)

    def closed_spec(*_: Any, **__: Any) -> None:
        raise PermissionError(f"segments_spec {CLOSED}")

    # A mistake in the previous exercise costs nothing here.
    with_functions_replaced(subject, checkpoint=recorded, segments_spec=closed_spec)

    def network(layers: Blocks, arguments: list[Tensor], *_: Any) -> list[Tensor]:
        before = list(layers)
        output = subject(layers, arguments[0], given["kept_bytes"], given["budget_bytes"])
        if layers != before:
            raise TypeError("the list of layers has changed: it should stay as it is")
        if not isinstance(output, Tensor):
            raise TypeError(f"returned {output!r:.50}, {NOT_THE_OUTPUT}")
        return [output]

    try:
        ours = step(network, given, case, log=log, **STEP_OPTIONS)
    except ValueError:
        return {"raises ValueError": True}
    peak_bytes, most_bytes = max(ours["saved"]), given["budget_bytes"]
    cut = cut_of(ours["log"], ours["again"])
    exceeds = f"no: {in_words(cut)} hold {peak_bytes:,} of {most_bytes:,} bytes"
    return results(ours, case) | {
        "raises ValueError": False,
        BITS: same_bits(ours, plain_step(given, case, **STEP_OPTIONS)),
        "fits the budget": "yes" if peak_bytes <= most_bytes else exceeds,
        "recomputed layers": len(ours["again"]),
        "cut": cut,
        "segments": segments,
    }


@on_each_rank
def other_layers_again(output: Any) -> MistakeText:
    """A segment's second run has other layers than its first."""
    for first, *others in output.get("segments", ()):
        for again in others:
            if again != first:
                return (
                    "runs different layers in a segment's second run from those in its first: "
                    "backward comes after the loop, and a variable that a segment reads must still "
                    "have the same value then; functools.partial, for example, binds the layers at "
                    "once; nor may a segment change its list of layers",
                    f"layers {first}, then {again}",
                )
    return None


@on_each_rank
def leaves_layers_out(output: Any) -> MistakeText:
    left_out = [str(layer) for layer, runs in enumerate(output.get(RUNS, ())) if not runs]
    return ("never runs some of the layers", f"layers {', '.join(left_out)}") if left_out else None


@on_each_rank
def cuts_worse(output: Any, expected: Any, case: Case) -> MistakeText:
    """A cut that fits but recomputes more layers than the best one, or an error instead of a cut,
    or a cut where none fits."""
    if expected["raises ValueError"]:
        too_large = str(output["fits the budget"]).removeprefix("no: ")
        return "returns an output although no cut fits the budget: raise ValueError", too_large
    enough = expected["recomputed layers"]
    fits = f"a cut with {case.params['blocks'] - enough} layers in the last segment fits"
    if output["raises ValueError"]:
        return "raises ValueError although a cut fits the budget", fits
    if output["fits the budget"] != "yes" or output["recomputed layers"] <= enough:
        return None
    return (
        "recomputes more layers than necessary, because its last segment is not as long as fits",
        f"{in_words(output['cut'])}; {fits}",
    )


def raises_another_error(attempt: Attempt) -> Finding | None:
    error = attempt.error
    if not isinstance(error, RankError) or not attempt.expected[0]["raises ValueError"]:
        return None
    if error.kind not in ("AssertionError", "RuntimeError", "Exception"):
        return None
    mistake = f"raises {error.kind} where no cut fits the budget: raise ValueError"
    return Finding("your answer", mistake, error.message, who_if_hidden="your answer")


EXERCISE = OnRanks(
    points=5,
    cases=(  # "budget": multiples of what a layer keeps, and of its input
        shared.blocks_case("10 layers, room for 4 and their inputs", 1, 10, 64, 16, budget=(4, 3)),
        shared.blocks_case(
            "16 layers of float64, room for 3 and an input",
            1,
            16,
            16,
            16,
            budget=(3, 1),
            samples=4,
            dtype="float64",
        ),
        shared.blocks_case("6 layers, room for 8", 1, 6, 8, 4, weight=0.5, budget=(8, 0)),
        shared.blocks_case("9 layers, room for 8", 1, 9, 8, 4, weight=0.5, budget=(2, 0)),
    ),
    inputs=draw_layers,
    drive=drive,
    tolerance=shared.TOLERANCE,
    allows=frozenset(),
    signs=(
        raises("list of layers has changed", CHANGES_THE_LIST, "your answer"),
        raises(
            NOT_THE_OUTPUT, f"returns a value that is {NOT_THE_OUTPUT}", "your answer", quoted=True
        ),
        raises_another_error,
        signs.wrong_form,
        other_layers_again,
        leaves_layers_out,
        NAMED_MISTAKES,
        cuts_worse,
    ),
)
