"""What one training step keeps in memory, by category."""

from __future__ import annotations

from typing import Any

from autograder.exercise import Formula, questions

CHOICES: dict[str, tuple[Any, ...]] = {
    "activation": ("relu", "gelu"),
    "tied": (False, True),
    "precision": ("fp32", "bf16"),
    "optimizer": ("sgd", "momentum", "adam"),
}


def setting(**changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {"vocabulary": 64, "width": 24, "layers": 3, "batch_size": 50}
    plain |= {"activation": "relu", "tied": False, "precision": "fp32", "optimizer": "adam"}
    return plain | changes


def in_each(name: str, **changes: Any) -> list[dict[str, Any]]:
    return [setting(**{name: value}, **changes) for value in CHOICES[name]]


EXERCISE = Formula(
    points=5,
    cases=(
        questions("fp32, Adam", setting()),
        questions("a larger batch, plain SGD", setting(batch_size=200, optimizer="sgd")),
        questions(
            "tied embeddings, momentum; no layer",
            setting(tied=True, optimizer="momentum"),
            setting(tied=True, optimizer="momentum", layers=0),
        ),
        questions("GELU, fp32 and bf16", *in_each("precision", activation="gelu")),
        questions("bf16: SGD, momentum, Adam", *in_each("optimizer", precision="bf16")),
    ),
    tolerance=0.005,  # a step also keeps scalars, such as Adam's step counters
)
