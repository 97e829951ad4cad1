"""A matrix product in int8 with the outlier features in fp32, as in LLM.int8()."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autograder.exercise import Case, OnRanks, Plain
from autograder.exercise.signs import MistakeText, on_each_rank
from autograder.guest.integer_nan import IntegerNan

THRESHOLD = 6.0  # in most cases
OUTLIER, BELOW = 60.0, 5.5  # the largest |value| of an outlier feature, and a typical other one
# The largest |value| of a tiny row of x, and of a row of w that makes its products about 1; and the
# other way round in a case with a threshold of HUGE.
TINY, HUGE = 1e-12, 1e12
ONCE_IN_ROW = 5
TOLERANCE = 1e-4  # fp32 sums in another order differ by less, a code that is off by 1 by far more
MAX_CODE = 127


def matmul_case(name: str, rows: int, features: int, out: int, **others: Any) -> Case:
    """``columns``: the outlier features.  ``once``: one of them, which exceeds the threshold in one
    row only, by little.  ``at``: a feature whose largest |value| is the threshold.  ``zeros``: a
    row of x whose regular features are zeros; the next one is all zeros, like padding, and so is
    this row of w.  ``tiny``: a row of w, and of x unless the threshold is HUGE."""
    params = {"rows": rows, "features": features, "out": out, "columns": ()}
    params["threshold"] = THRESHOLD
    return Case(name, 1, params | others)


def draw_matrices(case: Case, rng: np.random.Generator) -> Plain:
    """x [rows, features] and w [out, features], whose regular values are near their codes: no order
    of fp32 operations rounds one to a neighboring code."""
    size, columns = case.params, list(case.params["columns"])
    regular = [i for i in range(size["features"]) if i not in columns]
    x = np.empty((size["rows"], size["features"]))
    w = np.empty((size["out"], size["features"]))
    # Rows differ in their scale.  Some weights exceed the threshold, which is for x only.
    largest, of_w = np.geomspace(0.3, BELOW, size["rows"]), np.geomspace(0.2, 7.0, size["out"])
    if "tiny" in size and size["threshold"] == HUGE:
        of_w[size["tiny"]] = TINY
    elif "tiny" in size:
        largest[size["tiny"]], of_w[size["tiny"]] = TINY, HUGE
    drawn = regular
    if size["threshold"] == HUGE:  # one feature is below any threshold
        drawn, x[:, regular[-1]] = regular[:-1], 0.0
    x[:, drawn] = draw_rows(rng, largest, len(drawn))
    w[:, regular] = draw_rows(rng, of_w, len(regular))
    # Each outlier feature has one sign, as in real models, and is small in every other row.
    for i, column in enumerate(columns):
        x[:, column] = rng.uniform(0.3, BELOW, size["rows"])
        x[::2, column] = OUTLIER * rng.uniform(0.5, 1.0, len(x[::2]))
        x[0, column] = OUTLIER if i == 0 else OUTLIER * rng.uniform(0.5, 0.9)
        if column == size.get("once"):
            x[:, column] = rng.uniform(0.3, BELOW, len(x))
            x[ONCE_IN_ROW, column] = 7 / 6 * THRESHOLD
        x[:, column] *= -1 if i % 2 == 0 else 1
        w[:, column] = rng.uniform(0.5, 1.0, size["out"])
    if "at" in size:
        x[0] *= THRESHOLD / np.abs(x[0, regular]).max()
        x[0, size["at"]], x[0, regular[0]] = -THRESHOLD, x[0, size["at"]]
    if "zeros" in size:
        x[size["zeros"], regular] = x[size["zeros"] + 1] = w[size["zeros"]] = 0.0
    x *= size["threshold"] / THRESHOLD
    return {"x": torch.from_numpy(x).float(), "w": torch.from_numpy(w).float()}


def draw_rows(rng: np.random.Generator, largest: np.ndarray, length: int) -> np.ndarray:
    """[len(largest), length]: in each row, one value is ± its largest, and the others are within
    0.4 of a code of at most 126."""
    rows = len(largest)
    codes = rng.integers(-MAX_CODE + 1, MAX_CODE, (rows, length)) + rng.uniform(
        -0.4, 0.4, (rows, length)
    )
    codes[np.arange(rows), rng.integers(length, size=rows)] = MAX_CODE * rng.choice([-1, 1], rows)
    return codes * (largest / MAX_CODE)[:, None]


def drive(subject: Callable[..., Any], given: Plain, case: Case) -> Plain:
    x, w = given["x"].clone(), given["w"].clone()
    with IntegerNan() as converted:
        y = subject(x, w, case.params["threshold"])
    unchanged = torch.equal(x, given["x"]) and torch.equal(w, given["w"])
    y = y.detach() if isinstance(y, Tensor) else y
    return {"y": y, "unchanged": unchanged, "NaN in codes": converted.found}


@on_each_rank
def changes_arguments(output: Any) -> MistakeText:
    return None if output["unchanged"] else "changes x or w: write into a copy"


@on_each_rank
def converts_nan(output: Any) -> MistakeText:
    """A rule: with some CPUs, the result is 0 and right."""
    if output["NaN in codes"]:
        return "converts NaN to codes: a row of zeros has the scale 0, and 0 / 0 is NaN"
    return None


@on_each_rank
def loses_tiny_rows(output: Any, given: Any, expected: Any, case: Case) -> MistakeText:
    """If all other rows are right."""
    y, right = output["y"], expected["y"]
    if not isinstance(y, Tensor) or y.shape != getattr(right, "shape", None):
        return None
    wrong = ~torch.isclose(y, right, TOLERANCE, TOLERANCE)
    regular = [i for i in range(case.params["features"]) if i not in case.params["columns"]]
    is_tiny = [each[:, regular].abs().amax(1) < 1e-3 for each in (given["x"], given["w"])]
    if wrong.any() and not wrong[~is_tiny[0]][:, ~is_tiny[1]].any():
        if y.isnan().any():
            return "gives NaN for a row of zeros: its scale is 0, and 0 / 0 is NaN"
        return "changes the scale of tiny rows: take another one only where it is 0"
    return None


EXERCISE = OnRanks(
    points=3,
    cases=(
        matmul_case(
            "one feature at 60, one at 7", 30, 37, 10, columns=(11, 30), zeros=3, once=30, tiny=6
        ),
        matmul_case(
            "no outlier, one feature at the threshold", 5, 24, 7, at=20, threshold=HUGE, tiny=4
        ),
        matmul_case(
            "three outliers, two rows of x", 2, 50, 9, columns=(0, 23, 49), threshold=2 * THRESHOLD
        ),
    ),
    inputs=draw_matrices,
    drive=drive,
    tolerance=TOLERANCE,
    allows=frozenset(),
    rules=(changes_arguments, converts_nan),
    signs=(loses_tiny_rows,),
)
