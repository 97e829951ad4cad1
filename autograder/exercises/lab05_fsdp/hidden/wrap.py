"""The least number of units is that of Kundu and Misra, "A Linear Tree Partitioning Algorithm",
SIAM J. Comput. 6 (1977): bottom-up, the heaviest part leaves until the rest fits."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from autograder.exercise import Case, Limit, Plain
from autograder.exercise.hidden import with_random_delays
from autograder.exercises.common import FLOAT_BYTES
from autograder.exercises.lab04_zero.shared import loss_of
from autograder.exercises.lab05_fsdp import nested_model
from autograder.exercises.lab05_fsdp.nested_model import shards_by_rank, steps
from autograder.exercises.lab05_fsdp.wrap import EQUAL_BLOCKS, LEARNING_RATE, STEPS, TINY, case_of

ALL_FITS, JUST_TOO_LARGE = "3 ranks, everything fits", "2 ranks, a block is just too large"
CASES = (
    with_random_delays(
        case_of(
            "3 ranks, tiny blocks around three large ones",
            3,
            [
                TINY,
                [(16, 70), (70, 16)],
                TINY,
                [(16, 90), (90, 16), TINY],
                [(16, 50), (50, 50), (50, 16)],
                (16, 7),
            ],
            10_300,
            vocabulary=33,
        )
    ),
    case_of(ALL_FITS, 3, [TINY, (16, 1)], 8000, vocabulary=11),
    case_of(JUST_TOO_LARGE, 2, [*EQUAL_BLOCKS, (16, 6)], 4348),
    case_of(
        "2 ranks, the largest block leaves little",
        2,
        [[[(8, 40), (40, 8)], (8, 8)], [(8, 38), (38, 8)], (8, 5)],
        3000,
        width=8,
        vocabulary=12,
    ),
    case_of(
        "4 ranks, 1.5 MB",
        4,
        [[(128, 256), (256, 128)], [(128, 512), (512, 128)], [(128, 256), (256, 128)], (128, 64)],
        264_704,
        width=128,
        vocabulary=256,
    ),
)
BOUNDARIES = {
    "divides": "2 ranks, a block is exactly as large as a unit may be",
    "does not divide": "3 ranks, one large block, six tiny ones",
    "one rank": "not tested: one rank gathers nothing, and fully_shard calls no collective",
    "more ranks than elements": "3 ranks, one large block, six tiny ones",
    "exactly the budget": "2 ranks, a block is exactly as large as a unit may be",
    "just above the budget": JUST_TOO_LARGE,
    "one unit": ALL_FITS,
    "more units in each other": "4 ranks, blocks in blocks",
}


def units_in(case: Case) -> int:
    """The least number."""
    units = 1

    def rest(module: nn.Module) -> int:
        nonlocal units
        own = FLOAT_BYTES * sum(each.numel() for each in module.parameters(recurse=False))
        parts = sorted(rest(child) for child in module.children())
        while own + sum(parts) > case.params["unit_bytes"]:
            parts.pop()
            units += 1
        return own + sum(parts)

    rest(nested_model.on_meta(case))
    return units


def collective_limit(case: Case) -> Limit:
    """Two all-gathers and a reduce-scatter for each unit; the root stays whole after forward."""
    count = 3 * units_in(case) - 1
    return Limit(count, count)


LIMITS = {"as few collectives as possible": collective_limit}


def reference(case: Case, inputs: Any) -> list[Plain]:
    """One process that trains on all ranks' batches."""
    model = nested_model.nested_model(case.params, inputs[0]["parameters"])
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    losses: list[list[float]] = []
    for step in range(STEPS):
        optimizer.zero_grad()
        each = [loss_of(model, given["batches"][step]) for given in inputs]
        torch.stack(each).mean().backward()
        optimizer.step()
        losses.append([loss.item() for loss in each])
    whole = {name: each.detach() for name, each in model.named_parameters()}
    by_rank = zip(zip(*losses, strict=True), shards_by_rank(whole, case.world_size), strict=True)
    return [{"losses": steps(own), "shards": parts} for own, parts in by_rank]
