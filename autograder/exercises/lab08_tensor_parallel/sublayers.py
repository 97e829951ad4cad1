"""Shared by the two halves of a layer, MLP and attention, each split over the ranks."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from autograder.exercise import Case, OnRanks, Plain
from autograder.exercises.common import FLOAT_BYTES, normal
from autograder.exercises.lab08_tensor_parallel import shared
from autograder.exercises.lab08_tensor_parallel.shared import (
    Split,
    forward_and_backward,
    share_of,
    whole_weights,
)
from autograder.exercises.lab08_tensor_parallel.stand_ins import (
    StandInColumnLinear,
    StandInRowLinear,
)
from autograder.guest.on_rank import with_functions_replaced
from shardlab import models

Sublayer = type[models.MLP] | type[models.Attention]


def sublayer_case(world_size: int, heads: int, width: int, batch: int, tokens: int) -> Case:
    of_heads = f"{heads} heads, " if heads > 1 else ""
    name = f"{world_size} ranks, {of_heads}width {width}"
    params = {"heads": heads, "width": width, "batch": batch, "tokens": tokens}
    return Case(name, world_size, params)


def make_sublayer(kind: Sublayer, case: Case, whole: dict[str, Tensor] | None = None) -> nn.Module:
    """With the weights ``whole``, if given."""
    sizes = case.params
    sublayer = kind(models.GPTConfig(1, sizes["heads"], sizes["width"], context=sizes["tokens"]))
    if whole:
        sublayer.load_state_dict(whole)
    return sublayer


def draw(kind: Sublayer, case: Case, rng: np.random.Generator) -> Plain:
    """The same weights, input and gradient on all ranks."""
    whole = {
        f"{name}.{part}": tensor
        for name, linear in make_sublayer(kind, case).named_children()
        for part, tensor in shared.draw_linear(
            rng, *linear.get_parameter("weight").shape[::-1]
        ).items()
    }
    shape = [case.params[key] for key in ("batch", "tokens", "width")]
    return {"whole": whole, "x": normal(rng, *shape), "y.grad": normal(rng, *shape)}


def split_of(first: str, second: str) -> Split:
    """Columns of the first linear layer, rows of the second."""
    return {f"{first}.weight": 0, f"{first}.bias": 0, f"{second}.weight": 1}


def drive(kind: Sublayer, split: Split, subject: Any, given: Any, case: Case) -> Plain:
    """The student's split of a sublayer, with our linear layers."""
    layers_replaced = with_functions_replaced(
        subject, ColumnLinear=StandInColumnLinear, RowLinear=StandInRowLinear
    )
    made = make_sublayer(kind, case, given["whole"])
    weights = whole_weights(made, subject)
    returned = layers_replaced(made)
    del made
    share = share_of(given["whole"], split, case)
    return forward_and_backward(returned, given, weights, share)


def all_reduced_bytes(case: Case) -> int:
    """Bytes of y, in forward, and of x's gradient, in backward."""
    sizes = (case.params[key] for key in ("batch", "tokens", "width"))
    return 2 * FLOAT_BYTES * math.prod(sizes)


def sublayer_exercise(
    kind: Sublayer, split: Split, share: str, *, points: float, cases: tuple[Case, ...]
) -> OnRanks:
    """``share``: see `shared.signs`."""
    return OnRanks(
        points=points,
        cases=cases,
        inputs=partial(draw, kind),
        drive=partial(drive, kind, split),
        tolerance=shared.TOLERANCE,
        compares_calls=False,
        budgets=(
            shared.counted(shared.FORWARD, 1),
            shared.counted(shared.BACKWARD, 1),
            shared.passed_to_collectives("only y and x's gradient", all_reduced_bytes),
        ),
        signs=shared.signs(share),
    )
