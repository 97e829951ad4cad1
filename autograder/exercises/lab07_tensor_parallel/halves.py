"""What the two halves of a layer share, MLP and attention, each cut over the ranks."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from autograder.exercise import Attempt, Case, OnRanks, Plain
from autograder.exercise.signs import Said, on_each_rank, raises
from autograder.exercises.lab07_tensor_parallel import shared
from autograder.exercises.lab07_tensor_parallel.shared import there_and_back
from autograder.exercises.lab07_tensor_parallel.stand_ins import StandInForColumns, StandInForRows
from autograder.guest.on_rank import standing_in
from shardlab import models

Kind = type[models.MLP] | type[models.Attention]


def half_case(world_size: int, heads: int, width: int, batch: int, tokens: int) -> Case:
    of_heads = f"{heads} heads, " if heads > 1 else ""
    name = f"{world_size} ranks, {of_heads}width {width}"
    params = {"heads": heads, "width": width, "batch": batch, "tokens": tokens}
    return Case(name, world_size, params)


def half_of(kind: Kind, case: Case, whole: dict[str, Tensor] | None = None) -> nn.Module:
    """With the weights ``whole``, where they are given."""
    sizes = case.params
    half = kind(models.GPTConfig(1, sizes["heads"], sizes["width"], context=sizes["tokens"]))
    if whole:
        half.load_state_dict(whole)
    return half


def draw(kind: Kind, case: Case, rng: np.random.Generator) -> Plain:
    """The same weights, input and gradient everywhere."""
    whole = {
        f"{name}.{part}": tensor
        for name, linear in half_of(kind, case).named_children()
        for part, tensor in shared.draw_linear(
            rng, *linear.get_parameter("weight").shape[::-1]
        ).items()
    }
    shape = [case.params[key] for key in ("batch", "tokens", "width")]
    return {"whole": whole, "x": shared.normal(rng, *shape), "y.grad": shared.normal(rng, *shape)}


def drive(kind: Kind, subject: Any, given: Any, case: Case) -> Plain:
    """The student's cut of a half, on our linear layers."""
    cutter = standing_in(subject, ColumnLinear=StandInForColumns, RowLinear=StandInForRows)
    returned = cutter(half_of(kind, case, given["whole"]))
    if not isinstance(returned, nn.Module):
        return {"returned": type(returned).__name__}
    return there_and_back(returned, given)


def both_ways_bytes(case: Case) -> int:
    """y in forward, x's gradient in backward."""
    sizes = (case.params[key] for key in ("batch", "tokens", "width"))
    return 2 * shared.FLOAT_BYTES * math.prod(sizes)


@on_each_rank
def no_module(output: Any, rank: int, attempt: Attempt) -> Said:
    if "returned" in output:
        return "should return a module", f"it is {output['returned']}"
    return None


def cut_half(kind: Kind, *, points: float, cases: tuple[Case, ...]) -> OnRanks:
    return OnRanks(
        points=points,
        cases=cases,
        inputs=partial(draw, kind),
        drive=partial(drive, kind),
        tolerance=shared.NEAR,
        budgets=(
            shared.counted(shared.FORWARD, 1),
            shared.counted(shared.BACKWARD, 1),
            shared.handed_over("hands over no more than y and x's gradient", both_ways_bytes),
        ),
        signs=(
            no_module,
            raises(
                "RowLinear takes",
                "gives whole inputs to a RowLinear: it takes the part that a ColumnLinear has made",
            ),
            raises(
                "ColumnLinear takes",
                "gives a part of the input to a ColumnLinear: it takes whole inputs",
            ),
            *shared.signs(
                forward="communicates between the two linear layers: what the first one makes is "
                "what the second one takes, on each rank for itself",
                backward="communicates more than once in backward: the gradient of the input is "
                "the only sum there",
            ),
        ),
    )
