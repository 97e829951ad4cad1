"""What one training step keeps in memory, by category."""

from __future__ import annotations

from typing import Any

from autograder.exercise import Formula, questions


def setting(**changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {"vocabulary": 64, "width": 24, "layers": 3, "batch_size": 50}
    plain |= {"activation": "relu", "tied": False, "precision": "fp32", "optimizer": "adam"}
    return plain | changes


EXERCISE = Formula(
    points=5,
    cases=(
        questions("fp32, Adam", setting()),
        questions("a larger batch, plain SGD", setting(batch_size=200, optimizer="sgd")),
        questions("tied embeddings, momentum", setting(tied=True, optimizer="momentum")),
        questions("GELU", setting(activation="gelu")),
        questions("bf16 with fp32 masters, Adam", setting(precision="bf16")),
    ),
    tolerance=0.005,  # a step also keeps scalars, such as Adam's step counters
)
