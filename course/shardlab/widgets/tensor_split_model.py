"""What the tensor split shows: step by step, which rank has which part of which matrix.

Matrices are X [T, D], A [D, F], H [T, F], B [F, D], Y [T, D] of a layer with F = 4·D, or X, W and Y
of one product; "dX" is the gradient of X.  ``tensor_split.js`` gets all of this as data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# How a matrix lies on the ranks.
WHOLE, COLUMNS, ROWS, PARTIAL = "whole", "columns", "rows", "partial"
HIDDEN = 4  # F = 4·D
# Of a tensor of S bytes a ring sends (N−1)/N·S so many times (shardlab.estimate.collectives).
TIMES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}


@dataclass(frozen=True)
class Step:
    """One thing that happens. ``becomes``: how the matrices lie that it makes or changes."""

    told: str
    becomes: Mapping[str, str]
    backward: bool = False
    op: str = ""  # a collective, on the one matrix that becomes something


@dataclass(frozen=True)
class Cut:
    """A way to cut one layer. ``signs`` stand between its matrices."""

    title: str
    matrices: Mapping[str, tuple[str, str]]  # name: its sides, rows and columns
    signs: tuple[str, ...]
    steps: tuple[Step, ...] = field(repr=False)

    def states(self, step: int) -> dict[str, str]:
        """How each matrix lies after so many steps; those not yet made are missing."""
        found: dict[str, str] = {}
        for each in self.steps[: step + 1]:
            found |= each.becomes
        return found


PRODUCT = {"X": ("T", "D"), "W": ("D", "F"), "Y": ("T", "F")}
LAYER = {"X": ("T", "D"), "A": ("D", "F"), "H": ("T", "F"), "B": ("F", "D"), "Y": ("T", "D")}
ONE, TWO = ("·", "="), ("·", "→", "·", "=")

CUTS = {
    "columns": Cut(
        "W by columns", PRODUCT, ONE,
        (
            Step("Every rank has all of X and its own columns of W.", {"X": WHOLE, "W": COLUMNS}),
            Step("Each multiplies: it has its columns of Y. Nothing travels.", {"Y": COLUMNS}),
            Step("An all-gather, if somebody needs all of Y.", {"Y": WHOLE}, op="all_gather"),
            Step("Backward: each multiplies with its columns of dY. Its columns of dW are done; "
                 "of dX it has one summand of N.",
                 {"dY": COLUMNS, "dW": COLUMNS, "dX": PARTIAL}, backward=True),
            Step("An all-reduce adds the summands of dX up.", {"dX": WHOLE}, True, "all_reduce"),
        ),
    ),
    "rows": Cut(
        "W by rows", PRODUCT, ONE,
        (
            Step("Every rank has its columns of X and the rows of W that they meet.",
                 {"X": COLUMNS, "W": ROWS}),
            Step("Each multiplies: it has a summand of all of Y. Nothing has travelled yet.",
                 {"Y": PARTIAL}),
            Step("An all-reduce adds the summands up.", {"Y": WHOLE}, op="all_reduce"),
            Step("Backward: everybody has all of dY, and multiplies. Its rows of dW and columns "
                 "of dX are done. Nothing travels.",
                 {"dY": WHOLE, "dW": ROWS, "dX": COLUMNS}, backward=True),
        ),
    ),
    "mlp": Cut(
        "columns, then rows", LAYER, TWO,
        (
            Step("Every rank has all of X, its columns of A and the rows of B that they meet.",
                 {"X": WHOLE, "A": COLUMNS, "B": ROWS}),
            Step("Each multiplies and applies GELU: its columns of H. Nothing travels.",
                 {"H": COLUMNS}),
            Step("Just these columns meet its rows of B: a summand of all of Y.", {"Y": PARTIAL}),
            Step("One all-reduce adds the summands up.", {"Y": WHOLE}, op="all_reduce"),
            Step("Backward: everybody has all of dY. Its rows of dB and columns of dH are done.",
                 {"dY": WHOLE, "dB": ROWS, "dH": COLUMNS}, backward=True),
            Step("Its columns of dA are done; of dX it has one summand of N.",
                 {"dA": COLUMNS, "dX": PARTIAL}, backward=True),
            Step("One all-reduce adds the summands up.", {"dX": WHOLE}, True, "all_reduce"),
        ),
    ),
    "sequence": Cut(
        "with sequence parallelism", LAYER, TWO,
        (
            Step("Outside the layer every rank has its own tokens, which are rows of X.",
                 {"X": ROWS, "A": COLUMNS, "B": ROWS}),
            Step("An all-gather gives everybody all tokens.", {"X": WHOLE}, op="all_gather"),
            Step("Each multiplies and applies GELU: its columns of H.", {"H": COLUMNS}),
            Step("Just these columns meet its rows of B: a summand of all of Y.", {"Y": PARTIAL}),
            Step("A reduce-scatter adds up, and gives everybody its own tokens.", {"Y": ROWS},
                 op="reduce_scatter"),
            Step("Backward: an all-gather of dY.", {"dY": WHOLE}, True, "all_gather"),
            Step("Its rows of dB and columns of dH are done.", {"dB": ROWS, "dH": COLUMNS},
                 backward=True),
            Step("Its columns of dA are done; of dX it has one summand of N.",
                 {"dA": COLUMNS, "dX": PARTIAL}, backward=True),
            Step("A reduce-scatter adds up, and gives everybody its own tokens.", {"dX": ROWS},
                 True, "reduce_scatter"),
        ),
    ),
}  # fmt: skip


def side(letter: str, settings: Mapping[str, Any]) -> int:
    """T, D or F in elements."""
    if letter == "T":
        return int(settings["tokens"])
    return int(settings["width"]) * (HIDDEN if letter == "F" else 1)


def shape_of(name: str, cut: Cut, settings: Mapping[str, Any]) -> tuple[int, int]:
    """Rows and columns of a matrix, or of its gradient."""
    rows, columns = cut.matrices[name.removeprefix("d")]
    return side(rows, settings), side(columns, settings)


def step_bytes(step: Step, settings: Mapping[str, Any]) -> float:
    """What each rank sends in a step, by a ring; gloo's reduce-scatter is an all-reduce."""
    if not step.op:
        return 0.0
    (name,) = step.becomes
    rows, columns = shape_of(name, CUTS[settings["cut"]], settings)
    n = settings["ranks"]
    as_run = "all_reduce" if step.op == "reduce_scatter" and settings["gloo"] else step.op
    return float(TIMES[as_run] * (n - 1) / n * rows * columns * settings["element_bytes"])


def pass_bytes(settings: Mapping[str, Any]) -> tuple[float, float]:
    """What each rank sends forward, and backward."""
    sent = [0.0, 0.0]
    for step in CUTS[settings["cut"]].steps:
        sent[step.backward] += step_bytes(step, settings)
    return sent[0], sent[1]


def weight_bytes(settings: Mapping[str, Any]) -> float:
    """Of the layer's matrices of parameters, in all."""
    matrices = (name for name in CUTS[settings["cut"]].matrices if name in "WAB")
    shapes = (shape_of(name, CUTS[settings["cut"]], settings) for name in matrices)
    return float(sum(rows * columns for rows, columns in shapes) * settings["element_bytes"])
