"""Lab 07: the two halves of a layer, MLP and attention, each cut over the ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autograder.exercise import Attempt, Case, Exercise, Finding, Plain
from autograder.exercises.outputs import finished
from autograder.exercises.tensor_parallel import (
    BACKWARD,
    FLOAT_BYTES,
    FORWARD,
    NEAR,
    Slips,
    StandInForColumns,
    StandInForRows,
    Wrong,
    as_if,
    counted,
    does_not_fit,
    draw_linear,
    exchanges_too_much,
    handed_over,
    no_gradient,
    normal,
    other_parameters,
    share,
    there_and_back,
    what_is_right,
)
from autograder.exercises.zero import linear_of
from autograder.guest.on_rank import standing_in
from shardlab import models
from shardlab.errors import RankError


def half_case(
    world_size: int, heads: int, width: int, batch: int, tokens: int, hidden: bool = False
) -> Case:
    of_heads = f"{heads} heads, " if heads > 1 else ""
    name = f"{world_size} ranks, {of_heads}width {width}"
    params = {"heads": heads, "width": width, "batch": batch, "tokens": tokens}
    return Case(name, world_size, params, hidden)


def config_of(case: Case) -> models.GPTConfig:
    sizes = case.params
    return models.GPTConfig(1, sizes["heads"], sizes["width"], context=sizes["tokens"])


def draw_half(linears: Callable[[int], dict[str, tuple[int, int]]]) -> Callable[..., list[Plain]]:
    """The same weights, input and gradient everywhere. ``linears``: (in, out) by name and width."""

    def draw(case: Case, rng: np.random.Generator) -> list[Plain]:
        width = case.params["width"]
        shape = (case.params["batch"], case.params["tokens"], width)
        whole = {
            f"{name}.{part}": tensor
            for name, (fan_in, fan_out) in linears(width).items()
            for part, tensor in draw_linear(rng, fan_in, fan_out).items()
        }
        given = {"whole": whole, "x": normal(rng, *shape), "y.grad": normal(rng, *shape)}
        return [given] * case.world_size

    return draw


def with_weights(half: nn.Module, weights: dict[str, Tensor]) -> nn.Module:
    half.load_state_dict(weights)
    return half


def cut_half(subject: Any, half: nn.Module, given: Any) -> Plain:
    """The student's cut of it, on our linear layers."""
    cutter = standing_in(subject, ColumnLinear=StandInForColumns, RowLinear=StandInForRows)
    returned = cutter(with_weights(half, given.pop("whole")))
    if not isinstance(returned, nn.Module):
        return {"returned": type(returned).__name__}
    return there_and_back(returned, given)


def whole_and_back(half: nn.Module, given: Any) -> dict[str, Tensor]:
    """One process: y, x.grad and the gradients of whole weights."""
    with_weights(half, given["whole"])
    x = given["x"].clone().requires_grad_()
    y = half(x)
    y.backward(given["y.grad"])
    gradients = {name: parameter.grad for name, parameter in half.named_parameters()}
    return {"y": y.detach(), "x.grad": x.grad, **gradients}


def both_ways_bytes(case: Case) -> int:
    """y in forward, x's gradient in backward."""
    sizes = case.params
    return 2 * FLOAT_BYTES * math.prod(sizes[key] for key in ("batch", "tokens", "width"))


BUDGETS = (
    counted(FORWARD, 1),
    counted(BACKWARD, 1),
    handed_over("hands over no more than y and x's gradient", both_ways_bytes),
)


def no_module(attempt: Attempt) -> Finding | None:
    for rank, output in finished(attempt):
        if "returned" in output:
            return Finding(f"rank {rank}", "should return a module", f"it is {output['returned']}")
    return None


def rows_before_columns(attempt: Attempt) -> Finding | None:
    """A row-parallel layer that was given a whole input."""
    error = attempt.error
    if isinstance(error, RankError) and "RowLinear takes" in error.message:
        return Finding(
            f"rank {error.rank}",
            "gives whole inputs to a RowLinear: it takes the part that a ColumnLinear has made",
        )
    if isinstance(error, RankError) and "ColumnLinear takes" in error.message:
        return Finding(
            f"rank {error.rank}",
            "gives a part of the input to a ColumnLinear: it takes whole inputs",
        )
    return None


GATHERS_BETWEEN = (
    "communicates between the two linear layers: what the first one makes is what the second one "
    "takes, on each rank for itself"
)
TWICE_BACKWARD = (
    "communicates more than once in backward: the gradient of the input is the only sum there"
)
COMMON = (no_module, rows_before_columns, does_not_fit, other_parameters, no_gradient)


# ---- tp_mlp -------------------------------------------------------------------------------------


def drive_mlp(subject: Any, given: Any, case: Case) -> Plain:
    return cut_half(subject, models.MLP(config_of(case)), given)


def expect_mlp(case: Case, inputs: Any) -> list[Plain]:
    whole = whole_and_back(models.MLP(config_of(case)), inputs[0])
    return [
        what_is_right(
            whole["y"],
            whole["x.grad"],
            {
                "up.weight": share(whole["up.weight"], rank, case),
                "up.bias": share(whole["up.bias"], rank, case),
                "down.weight": share(whole["down.weight"], rank, case, dim=1),
                "down.bias": whole["down.bias"],
            },
        )
        for rank in range(case.world_size)
    ]


def without_gelu(attempt: Attempt) -> list[dict[str, Tensor]]:
    outputs = []
    for given in attempt.inputs:
        up, up_bias, down, down_bias = given["whole"].values()
        outputs.append({"y": (given["x"] @ up.T + up_bias) @ down.T + down_bias})
    return outputs


def gelu_of_partial_sums(attempt: Attempt) -> list[dict[str, Tensor]]:
    """Up cut by rows: each rank has a summand of the inner values, of which it takes the gelu."""
    case = attempt.case
    up, up_bias, down, down_bias = attempt.inputs[0]["whole"].values()
    x, gelu = attempt.inputs[0]["x"], nn.functional.gelu
    inner = torch.zeros(())
    for rank in range(case.world_size):
        summand = share(x, rank, case, dim=-1) @ share(up, rank, case, dim=1).T
        inner = inner + gelu(summand)
    return [{"y": (inner + up_bias) @ down.T + down_bias}] * case.world_size


MLP_SLIPS: Slips = (
    (without_gelu, "leaves out the gelu between the two layers"),
    (
        gelu_of_partial_sums,
        "takes the gelu of summands: the gelu of a sum is not the sum of gelus, so cut the "
        "first layer by columns",
    ),
)

TP_MLP = Exercise(
    name="tensor_parallel.tp_mlp",
    points=3,
    cases=(
        half_case(2, 1, 6, 2, 3),
        half_case(4, 1, 8, 1, 4),
        half_case(2, 1, 10, 3, 2, hidden=True),
        half_case(4, 1, 7, 2, 5, hidden=True),
    ),
    draw=draw_half(lambda width: {"up": (width, 4 * width), "down": (4 * width, width)}),
    drive=drive_mlp,
    expect=expect_mlp,
    tolerance=NEAR,
    budgets=BUDGETS,
    diagnoses=(
        *COMMON,
        as_if(*MLP_SLIPS),
        exchanges_too_much(FORWARD, GATHERS_BETWEEN),
        exchanges_too_much(BACKWARD, TWICE_BACKWARD),
    ),
)


# ---- tp_attention -------------------------------------------------------------------------------


def drive_attention(subject: Any, given: Any, case: Case) -> Plain:
    return cut_half(subject, models.Attention(config_of(case)), given)


def expect_attention(case: Case, inputs: Any) -> list[Plain]:
    whole = whole_and_back(models.Attention(config_of(case)), inputs[0])
    n = case.world_size

    def of_heads(gradient: Tensor, rank: int) -> Tensor:
        """Of q, of k and of v alike, the rows of a block of heads."""
        return gradient.unflatten(0, (3, n, -1))[:, rank].flatten(0, 1)

    return [
        what_is_right(
            whole["y"],
            whole["x.grad"],
            {
                "qkv.weight": of_heads(whole["qkv.weight"], rank),
                "qkv.bias": of_heads(whole["qkv.bias"], rank),
                "out.weight": share(whole["out.weight"], rank, case, dim=1),
                "out.bias": whole["out.bias"],
            },
        )
        for rank in range(n)
    ]


Rows = Sequence[int]  # of the fused matrix, those of one rank in their order: its q, its k, its v


def attention_with(
    attempt: Attempt, rows_by_rank: Sequence[Rows], heads: int
) -> list[dict[str, Tensor]] | None:
    """y where each rank has taken these rows and sees so many heads in them."""
    case = attempt.case
    config, given = config_of(case), attempt.inputs[0]
    if (len(rows_by_rank[0]) // 3) % heads:
        return None  # that would have stopped with an error
    qkv, qkv_bias, out, out_bias = given["whole"].values()
    y = out_bias
    for rank, rows in enumerate(rows_by_rank):
        half = models.Attention(config)
        half.heads = heads
        half.qkv = linear_of(qkv[list(rows)], qkv_bias[list(rows)])
        half.out = linear_of(share(out, rank, case, dim=1), torch.zeros_like(out_bias))
        y = y + half(given["x"]).detach()
    return [{"y": y}] * case.world_size


def rows_as_they_come(case: Case) -> list[Rows]:
    length = 3 * case.params["width"] // case.world_size
    return [range(rank * length, (rank + 1) * length) for rank in range(case.world_size)]


def picked(case: Case, elements: Callable[[int], Rows]) -> list[Rows]:
    """By rank, the same elements of q, of k and of v."""
    width = case.params["width"]
    return [
        [part * width + element for part in range(3) for element in elements(rank)]
        for rank in range(case.world_size)
    ]


def blocks(case: Case) -> list[Rows]:
    length = case.params["width"] // case.world_size
    return picked(case, lambda rank: range(rank * length, (rank + 1) * length))


def a_piece_of_each_head(case: Case) -> list[Rows]:
    width, heads = case.params["width"], case.params["heads"]
    of_head, piece = width // heads, width // heads // case.world_size
    return picked(
        case,
        lambda rank: [
            head * of_head + rank * piece + i for head in range(heads) for i in range(piece)
        ],
    )


def every_nth_head(case: Case) -> list[Rows]:
    width, heads, n = case.params["width"], case.params["heads"], case.world_size
    of_head = width // heads
    return picked(
        case,
        lambda rank: [head * of_head + i for head in range(rank, heads, n) for i in range(of_head)],
    )


def all_heads(case: Case) -> int:
    heads: int = case.params["heads"]
    return heads


def own_heads(case: Case) -> int:
    return all_heads(case) // case.world_size


def cut(rows: Callable[[Case], list[Rows]], heads: Callable[[Case], int]) -> Wrong:
    return lambda attempt: attention_with(attempt, rows(attempt.case), heads(attempt.case))


ATTENTION_SLIPS: Slips = (
    (
        cut(rows_as_they_come, own_heads),
        "cuts the rows of qkv as they come, so that one rank has queries and another keys: "
        "each needs the q, the k and the v of its own heads",
    ),
    (
        cut(rows_as_they_come, all_heads),
        "cuts the rows of qkv as they come, and does not divide the number of heads: each "
        "rank needs the q, the k and the v of its own heads",
    ),
    (
        cut(a_piece_of_each_head, all_heads),
        "cuts each head into pieces: a rank needs whole heads, for the softmax is taken of "
        "a whole head's products",
    ),
    (
        cut(a_piece_of_each_head, own_heads),
        "takes a piece of each head for its heads: heads lie one after the other in q's "
        "rows, so whole heads are blocks of rows",
    ),
    (
        cut(blocks, all_heads),
        "does not divide the number of heads: a rank has H/N of them, each as wide as before",
    ),
    (
        cut(every_nth_head, own_heads),
        "takes every N-th head from qkv, but a block of columns from out: both belong to "
        "the same heads",
    ),
)

TP_ATTENTION = Exercise(
    name="tensor_parallel.tp_attention",
    points=4,
    cases=(
        half_case(2, 4, 16, 1, 4),
        half_case(4, 4, 16, 2, 3),
        half_case(2, 6, 24, 2, 3, hidden=True),
        half_case(4, 8, 32, 1, 5, hidden=True),
        half_case(4, 12, 48, 1, 3, hidden=True),
    ),
    draw=draw_half(lambda width: {"qkv": (width, 3 * width), "out": (width, width)}),
    drive=drive_attention,
    expect=expect_attention,
    tolerance=NEAR,
    budgets=BUDGETS,
    diagnoses=(
        *COMMON,
        as_if(*ATTENTION_SLIPS),
        exchanges_too_much(FORWARD, GATHERS_BETWEEN),
        exchanges_too_much(BACKWARD, TWICE_BACKWARD),
    ),
)
