from __future__ import annotations

from typing import Any

import torch

from autograder.exercise import Case, Plain
from autograder.exercise.hidden import EqualAnswer
from autograder.exercises.lab09_activation_checkpointing.hidden import shared
from autograder.exercises.lab09_activation_checkpointing.partitioned_checkpoint import (
    EXCHANGES_GRADIENTS,
    chain_case,
)

reference = shared.reference
CASES = (
    chain_case("3 ranks, weights of their own", 3, 1, rows=2, width=5, own=True),
    chain_case("2 ranks, 14 blocks of 1 MiB", 2, 14, rows=32_768, width=8, keep=0.9, weight=2),
)
BOUNDARIES = {
    "divides": "4 ranks, 4 blocks of 128 KiB",
    "does not divide": "4 ranks, dropout, 15 elements",
    "one rank": "not asked: its piece is all of x",
    "more ranks than elements": "not asked: x has a row for each token, far more than there are "
    "ranks",
}
EQUAL_ANSWERS = (
    EqualAnswer(
        "        flat = piece.new_empty(dist.get_world_size() * len(piece))\n"
        "        dist.all_gather_single(flat, piece)\n",
        "        pieces = [torch.empty_like(piece) for _ in range(dist.get_world_size())]\n"
        "        dist.all_gather(pieces, piece)\n"
        "        flat = torch.cat(pieces)\n",
        "a list of pieces, joined afterwards, sends the same bytes",
    ),
    EqualAnswer(
        "flat.chunk(tp_size)[tp_rank].clone()",
        "flat.view(tp_size, -1)[tp_rank].clone()",
        "a row of a table is the same piece",
    ),
)


def summed(case: Case, inputs: Any, share: float = 1) -> list[Plain]:
    """Each block adds up over ranks what backward has brought it."""
    ranks, blocks = case.world_size, case.params["blocks"]
    own = [right[shared.ARGUMENTS][0] for right in shared.plain(case, inputs)]
    total = share * torch.stack(own).sum(dim=0) * (share * ranks) ** (blocks - 1)
    return [{shared.ARGUMENTS: [total]}] * ranks


MISTAKES = {
    EXCHANGES_GRADIENTS: (
        summed,
        lambda case, inputs: summed(case, inputs, share=1 / case.world_size),
    ),
    **shared.MISTAKES,
}
