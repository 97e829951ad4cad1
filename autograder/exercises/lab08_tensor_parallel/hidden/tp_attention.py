from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EquivalentAnswer, with_random_delays
from autograder.exercises.common import linear_of
from autograder.exercises.lab08_tensor_parallel.hidden import shared
from autograder.exercises.lab08_tensor_parallel.sublayers import make_sublayer, sublayer_case
from autograder.exercises.lab08_tensor_parallel.tp_attention import SPLIT
from shardlab import models

CASES = (
    sublayer_case(2, 6, 24, 2, 3),
    with_random_delays(sublayer_case(4, 8, 32, 1, 5)),
    sublayer_case(4, 12, 48, 1, 3),
)
BOUNDARIES = shared.BOUNDARIES | {"divides": "2 ranks, 4 heads, width 16"}

# Row numbers of the fused matrix [3D], heads, N  ->  the rows that each rank takes [N, 3D/N]
Order = Callable[[Tensor, int, int], Tensor]


def blocks(rows: Tensor, heads: int, n: int) -> Tensor:
    """A block of heads, the same from q, k and v."""
    return rows.view(3, n, -1).movedim(1, 0).flatten(1)


def in_stored_order(rows: Tensor, heads: int, n: int) -> Tensor:
    return rows.view(n, -1)


def a_piece_of_each_head(rows: Tensor, heads: int, n: int) -> Tensor:
    return rows.view(3, heads, n, -1).movedim(2, 0).flatten(1)


def rows_of(order: Order, case: Case) -> Tensor:
    rows = torch.arange(3 * case.params["width"])
    return order(rows, case.params["heads"], case.world_size)


def reference(case: Case, inputs: Any) -> list[Plain]:
    whole = shared.run_whole_sublayer(models.Attention, case, inputs)
    for key in ("qkv.weight.grad", "qkv.bias.grad"):
        whole[key] = whole[key][rows_of(blocks, case).flatten()]
    return shared.shares(whole, case, SPLIT)


def attention(order: Order, *, own_heads: bool) -> Callable[[Case, Any], Plain]:
    """y if each rank takes these rows; None if that would raise an error."""

    def outputs(case: Case, inputs: Any) -> Plain:
        heads = case.params["heads"] // (case.world_size if own_heads else 1)
        if case.params["width"] // case.world_size % heads:
            return None
        qkv, qkv_bias, out, out_bias = inputs[0]["whole"].values()
        y, columns = out_bias, out.chunk(case.world_size, dim=1)
        for rank, rows in enumerate(rows_of(order, case)):
            own: Any = make_sublayer(models.Attention, case, inputs[0]["whole"])
            own.heads, own.qkv = heads, linear_of(qkv[rows], qkv_bias[rows])
            own.out = linear_of(columns[rank], torch.zeros_like(out_bias))
            y = y + own(inputs[0]["x"]).detach()
        return {"y": y}

    return outputs


MISTAKES = {
    "splits the rows of qkv in stored order, so that one rank has queries and another keys: each "
    "needs q, k and v of its own heads": (
        attention(in_stored_order, own_heads=True),
        attention(in_stored_order, own_heads=False),
    ),
    "splits each head into pieces: a rank needs whole heads, because softmax needs a whole head's "
    "scores": (
        attention(a_piece_of_each_head, own_heads=False),
        attention(a_piece_of_each_head, own_heads=True),
    ),
    "leaves the number of heads as it was: a rank has 1/N of them, each as wide as before": (
        attention(blocks, own_heads=False)
    ),
}
EQUIVALENT_ANSWERS = (
    EquivalentAnswer(
        "by_rank = zip(*(part.chunk(world_size) for part in tensor.detach().chunk(3)))",
        "by_rank = tensor.detach().clone().unflatten(0, (3, world_size, -1)).transpose(0, 1)",
        "another way to the same order of rows",
    ),
)
