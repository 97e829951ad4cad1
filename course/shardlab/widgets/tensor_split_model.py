"""What the tensor split shows: step by step, which rank has which part of which matrix.

Matrices are X [T, D], W₁ [D, 4D], H [T, 4D], W₂ [4D, D], Y [T, D] of a layer, or X, W and Y of one
product; "dX" is the gradient of X.  ``tensor_split.js`` gets all of this as data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# How a matrix is distributed over the ranks.
REPLICATED, COLUMNS, ROWS, PARTIAL = "replicated", "columns", "rows", "partial"
HIDDEN_FACTOR = 4  # the side "4D"
# For a tensor of S bytes a rank of a ring sends (N−1)/N·S times this (estimate.collectives).
RING_FACTOR = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}


@dataclass(frozen=True)
class Step:
    """One step. ``layouts``: how the matrices that it creates or changes are distributed."""

    text: str
    layouts: Mapping[str, str]
    backward: bool = False
    op: str = ""  # a collective, on the one matrix in ``layouts``


@dataclass(frozen=True)
class Cut:
    """A way to split one layer. ``signs`` are drawn between its matrices."""

    title: str
    matrices: Mapping[str, tuple[str, str]]  # name: its sides, rows and columns
    signs: tuple[str, ...]
    steps: tuple[Step, ...] = field(repr=False)

    def layouts_after(self, step: int) -> dict[str, str]:
        """How each matrix is distributed after a step; those not yet created are missing."""
        found: dict[str, str] = {}
        for each in self.steps[: step + 1]:
            found |= each.layouts
        return found


PRODUCT = {"X": ("T", "D"), "W": ("D", "4D"), "Y": ("T", "4D")}
LAYER = {"X": ("T", "D"), "W₁": ("D", "4D"), "H": ("T", "4D"), "W₂": ("4D", "D"), "Y": ("T", "D")}
PRODUCT_SIGNS, LAYER_SIGNS = ("·", "="), ("·", "→", "·", "=")

CUTS = {
    "columns": Cut(
        "W by columns", PRODUCT, PRODUCT_SIGNS,
        (
            Step("Every rank has all of X and its own columns of W.",
                 {"X": REPLICATED, "W": COLUMNS}),
            Step("Each rank computes its columns of Y. No communication.", {"Y": COLUMNS}),
            Step("An all-gather, if all of Y is needed.", {"Y": REPLICATED}, op="all_gather"),
            Step("Backward: from its columns of dY each rank computes its columns of dW and one of "
                 "N partial sums of dX.",
                 {"dY": COLUMNS, "dW": COLUMNS, "dX": PARTIAL}, backward=True),
            Step("An all-reduce adds up the partial sums.", {"dX": REPLICATED}, True, "all_reduce"),
        ),
    ),
    "rows": Cut(
        "W by rows", PRODUCT, PRODUCT_SIGNS,
        (
            Step("Every rank has its columns of X and the matching rows of W.",
                 {"X": COLUMNS, "W": ROWS}),
            Step("Each rank computes a partial sum of all of Y. No communication yet.",
                 {"Y": PARTIAL}),
            Step("An all-reduce adds up the partial sums.", {"Y": REPLICATED}, op="all_reduce"),
            Step("Backward: every rank has all of dY and computes its rows of dW and its columns "
                 "of dX. No communication.",
                 {"dY": REPLICATED, "dW": ROWS, "dX": COLUMNS}, backward=True),
        ),
    ),
    "mlp": Cut(
        "columns, then rows", LAYER, LAYER_SIGNS,
        (
            Step("Every rank has all of X, its columns of W₁ and the matching rows of W₂.",
                 {"X": REPLICATED, "W₁": COLUMNS, "W₂": ROWS}),
            Step("Each rank computes its columns of H = GELU(X·W₁). No communication.",
                 {"H": COLUMNS}),
            Step("With its rows of W₂, each rank computes a partial sum of all of Y.",
                 {"Y": PARTIAL}),
            Step("One all-reduce adds up the partial sums.", {"Y": REPLICATED}, op="all_reduce"),
            Step("Backward: every rank has all of dY and computes its rows of dW₂ and columns "
                 "of dH.",
                 {"dY": REPLICATED, "dW₂": ROWS, "dH": COLUMNS}, backward=True),
            Step("Each rank computes its columns of dW₁ and one of N partial sums of dX.",
                 {"dW₁": COLUMNS, "dX": PARTIAL}, backward=True),
            Step("One all-reduce adds up the partial sums.", {"dX": REPLICATED}, True,
                 "all_reduce"),
        ),
    ),
    "sequence": Cut(
        "with sequence parallelism", LAYER, LAYER_SIGNS,
        (
            Step("Outside the layer every rank has its own tokens, as rows of X.",
                 {"X": ROWS, "W₁": COLUMNS, "W₂": ROWS}),
            Step("An all-gather gives every rank all tokens.", {"X": REPLICATED}, op="all_gather"),
            Step("Each rank computes its columns of H = GELU(X·W₁).", {"H": COLUMNS}),
            Step("With its rows of W₂, each rank computes a partial sum of all of Y.",
                 {"Y": PARTIAL}),
            Step("A reduce-scatter adds up the partial sums and gives each rank its own tokens.",
                 {"Y": ROWS}, op="reduce_scatter"),
            Step("Backward: an all-gather of dY.", {"dY": REPLICATED}, True, "all_gather"),
            Step("Each rank computes its rows of dW₂ and columns of dH.",
                 {"dW₂": ROWS, "dH": COLUMNS}, backward=True),
            Step("Each rank computes its columns of dW₁ and one of N partial sums of dX.",
                 {"dW₁": COLUMNS, "dX": PARTIAL}, backward=True),
            Step("A reduce-scatter adds up the partial sums and gives each rank its own tokens.",
                 {"dX": ROWS}, True, "reduce_scatter"),
        ),
    ),
}  # fmt: skip


def side(letter: str, settings: Mapping[str, Any]) -> int:
    """T, D or 4D in elements."""
    if letter == "T":
        return int(settings["tokens"])
    return int(settings["width"]) * (HIDDEN_FACTOR if letter == "4D" else 1)


def shape_of(name: str, cut: Cut, settings: Mapping[str, Any]) -> tuple[int, int]:
    """Rows and columns of a matrix, or of its gradient."""
    rows, columns = cut.matrices[name.removeprefix("d")]
    return side(rows, settings), side(columns, settings)


def step_bytes(step: Step, settings: Mapping[str, Any]) -> float:
    """What each rank sends in a step with a ring; gloo's reduce-scatter is an all-reduce."""
    if not step.op:
        return 0.0
    (name,) = step.layouts
    rows, columns = shape_of(name, CUTS[settings["cut"]], settings)
    n = settings["ranks"]
    executed_op = "all_reduce" if step.op == "reduce_scatter" and settings["gloo"] else step.op
    sent = RING_FACTOR[executed_op] * (n - 1) / n * rows * columns
    return float(sent * settings["element_bytes"])


def pass_bytes(settings: Mapping[str, Any]) -> tuple[float, float]:
    """What each rank sends in forward, and in backward."""
    sent = [0.0, 0.0]
    for step in CUTS[settings["cut"]].steps:
        sent[step.backward] += step_bytes(step, settings)
    return sent[0], sent[1]


def weight_bytes(settings: Mapping[str, Any]) -> float:
    """All parameters of the layer, on all ranks together."""
    matrices = (name for name in CUTS[settings["cut"]].matrices if name.startswith("W"))
    shapes = (shape_of(name, CUTS[settings["cut"]], settings) for name in matrices)
    return float(sum(rows * columns for rows, columns in shapes) * settings["element_bytes"])
