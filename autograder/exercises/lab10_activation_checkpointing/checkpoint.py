"""An autograd.Function that keeps its inputs and runs the function again."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from autograder.exercise import Case, OnRanks, Plain
from autograder.exercise.signs import raises
from autograder.exercises.lab10_activation_checkpointing import shared, signs
from autograder.exercises.lab10_activation_checkpointing.networks import drive

STATE_BYTES = 8192  # random state, for each call of checkpoint; torch's has 5,056


def draw_network(case: Case, rng: np.random.Generator) -> Plain:
    x = shared.draw_x(case, rng)
    mask = torch.from_numpy(rng.random(x.shape) < 0.3)
    return {
        "weights": shared.draw_weights(case, rng),
        "x": x,
        "other": shared.draw_x(case, rng),
        "mask": mask,
        "scale": float(rng.uniform(0.5, 2)),
        "seed": int(rng.integers(1, 2**31)),
    }


def inputs_bytes(case: Case) -> int:
    """For each call, a tensor of x's size (its input, or the last output) and the random state."""
    calls = {"chain": case.params["blocks"], "nested": 2}.get(case.params["network"], 1)
    return int(calls * (shared.x_bytes(case) + STATE_BYTES))


def network_case(name: str, network: str, blocks: int, keep: float = 1.0, **others: Any) -> Case:
    others |= {"network": network, "random loss": keep < 1}
    return shared.blocks_case(name, 1, blocks, keep=keep, **others)


EXERCISE = OnRanks(
    points=6,
    cases=(
        network_case("a chain of 4, 64 KiB each", "chain", 4, rows=256, width=64),
        network_case("dropout, two losses", "apart", 3, rows=5, keep=0.7, apart=True),
        network_case("several arguments and outputs", "several", 2, unused=1),
        network_case("nested, with dropout", "nested", 3, keep=0.8),
    ),
    inputs=draw_network,
    drive=drive,
    tolerance=shared.TOLERANCE,
    budgets=shared.kept_after_forward(
        "keeps ≤ 1.02 × one block's input, and 8 kB, for each call", inputs_bytes
    ),
    allows=frozenset(),
    signs=(
        raises(
            shared.STAYS_A_TUPLE, f"does not return a tuple: {shared.STAYS_A_TUPLE}", "your answer"
        ),
        signs.wrong_form,
        signs.draws_in_forward,
        signs.runs_again_without_autograd,
        signs.runs_again_differently,
    ),
    memory=True,
)
