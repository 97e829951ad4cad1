"""An autograd.Function that keeps its inputs and runs the function again."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from autograder.exercise import NAMED, Attempt, Budget, Case, Limit, OnRanks, Plain
from autograder.exercise.process_memory import no_more_than_tensors
from autograder.exercise.signs import Said, is_over, on_each_rank
from autograder.exercises.lab09_activation_checkpointing import shared, signs
from autograder.exercises.lab09_activation_checkpointing.networks import drive

STATE_BYTES = 8192  # of the random numbers, for each call of checkpoint; torch's has 5,056
SMALL_ROWS = 64  # below, a budget of bytes would be one of scalars
LARGE_ROWS = 10_000  # from here on a process shows what it holds


def draw_network(case: Case, rng: np.random.Generator) -> Plain:
    x = shared.draw_x(case, rng)
    mask = torch.from_numpy(rng.random(x.shape) < 0.7).float()
    return {
        "weights": shared.draw_weights(case, rng),
        "x": x,
        "other": shared.draw_x(case, rng),
        "mask": mask,
        "scale": float(rng.uniform(0.5, 2)),
        "seed": shared.draw_seed(rng),
    }


def kept_limit(case: Case) -> Limit | None:
    """A tensor of x's size for each call: its input, and for the last one the output."""
    if case.params["rows"] < SMALL_ROWS:
        return None
    calls = case.params["blocks"] if case.params["network"] == "chain" else 1
    return Limit(1.02 * calls * (shared.x_bytes(case) + STATE_BYTES))


INPUTS_ALONE = Budget(
    "keeps ≤ 1.02 × one tensor of x's size, and 8 kB, for each call",
    limit=kept_limit,
    used=shared.live_rise,
    heading="kept after forward",
)


def seen_bytes(case: Case) -> float | None:
    limit = kept_limit(case) if case.params["rows"] >= LARGE_ROWS else None
    return limit and limit.most


SEEN = no_more_than_tensors(shared.FORWARD, seen_bytes, before=shared.BEFORE)


@on_each_rank
def keeps_a_graph(output: Any, rank: int, attempt: Attempt) -> Said:
    first = output["log"][: attempt.case.params["blocks"]]
    if is_over(attempt, INPUTS_ALONE.heading) and any(run["grad"] for run in first):
        return (
            "makes a graph in forward and keeps it: run the function under torch.no_grad(), "
            "and in backward once more with gradients on"
        )
    return None


@on_each_rank
def off_by_bits(output: Any, rank: int, attempt: Attempt) -> Said:
    if not output["bit for bit"]:
        return "gives gradients that differ from those without checkpointing"
    return None


def network_case(
    name: str,
    network: str,
    blocks: int,
    rows: int = 3,
    width: int = 4,
    keep: float = 1.0,
    one_unused: bool = False,
) -> Case:
    """``one_unused``: the loss does without one of several outputs."""
    params = {"network": network, "blocks": blocks, "rows": rows, "width": width, "keep": keep}
    return Case(name, 1, params | {"one unused": one_unused, "random loss": keep < 1})


EXERCISE = OnRanks(
    points=6,
    cases=(
        network_case("a chain of 4, 64 KiB each", "chain", 4, rows=256, width=64),
        network_case("a chain of 3 with dropout", "chain", 3, rows=5, keep=0.7),
        network_case("several of everything", "several", 2),
        network_case("nested, with dropout", "nested", 3, keep=0.8),
    ),
    inputs=draw_network,
    drive=drive,
    tolerance=shared.NEAR,
    budgets=(INPUTS_ALONE, SEEN),
    allows=frozenset(),
    signs=(
        signs.wrong_form,
        signs.runs_in_vain,
        keeps_a_graph,
        signs.draws_anew,
        signs.leaves_the_generator,
        NAMED,
        off_by_bits,
    ),
    memory=True,
)
