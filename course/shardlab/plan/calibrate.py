"""Fits the constants of a cluster and its stack to measured steps, and scores them on others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from shardlab.plan.layouts import Layout
from shardlab.plan.model import Cluster, Model
from shardlab.plan.step import Constants, step

# With few runs, several sets of constants fit equally well.  Of those, the nearest to the start is
# taken: to be off by a factor of e counts as much as a run that is off by 5 %.
PRIOR_WEIGHT = 0.05
DIFFERENCE = 1e-4  # of a constant's logarithm, for its derivative
MOST_ITERATIONS = 200


@dataclass(frozen=True)
class Measured:
    """A step that somebody measured."""

    name: str
    model: Model
    cluster: Cluster
    batch: int  # sequences
    layout: Layout
    seconds: float

    def predicted_s(self, constants: Constants) -> float:
        found = step(self.model, self.cluster, self.batch, self.layout, constants)
        return float(found.seconds[0])

    def error(self, constants: Constants) -> float:
        """Of the prediction, relative to the measurement: 0.05 is 5 % too slow."""
        return self.predicted_s(constants) / self.seconds - 1


@dataclass(frozen=True)
class Calibration:
    """held_out   the error for each run when it is left out of the fit: what to expect of a new
    run.  Empty if there are too few runs."""

    constants: Constants
    errors: dict[str, float]
    held_out: dict[str, float]

    @property
    def mean_error(self) -> float:
        return float(np.mean(np.abs(list((self.held_out or self.errors).values()))))

    @property
    def worst_error(self) -> float:
        return float(np.max(np.abs(list((self.held_out or self.errors).values()))))


def calibrate(
    runs: Sequence[Measured],
    start: Constants | None = None,
    *,
    fitted: Sequence[str] | None = None,
    hold_out: bool = True,
) -> Calibration:
    """Fit the constants named in ``fitted`` (default: all) to the runs' logarithms.

    ``hold_out``: fit once more without each run in turn, and predict it.

    Raises ValueError with fewer runs than constants: they could be fitted to anything.
    """
    begin = start or Constants()
    names = list(asdict(begin)) if fitted is None else list(fitted)
    unknown = set(names) - set(asdict(begin))
    if unknown or not names:
        raise ValueError(f"fitted={sorted(unknown)}: expected some of {', '.join(asdict(begin))}")
    if len(runs) < len(names):
        raise ValueError(
            f"{len(runs)} runs cannot fit {len(names)} constants: measure more, or fit fewer "
            f"(fitted={names[: max(len(runs) // 2, 1)]})"
        )
    constants = _fit(runs, begin, names)
    held_out = {}
    if hold_out and len(runs) > len(names):
        for at, run in enumerate(runs):
            others = [*runs[:at], *runs[at + 1 :]]
            held_out[run.name] = run.error(_fit(others, constants, names))
    errors = {run.name: run.error(constants) for run in runs}
    return Calibration(constants, errors, held_out)


def _fit(runs: Sequence[Measured], begin: Constants, names: Sequence[str]) -> Constants:
    measured = np.log([run.seconds for run in runs])
    first = np.log([asdict(begin)[name] for name in names])

    def at(logarithms: np.ndarray) -> Constants:
        return replace(begin, **dict(zip(names, np.exp(logarithms).tolist(), strict=True)))

    def residuals(logarithms: np.ndarray) -> np.ndarray:
        constants = at(logarithms)
        errors = np.log([run.predicted_s(constants) for run in runs]) - measured
        return np.concatenate([errors, PRIOR_WEIGHT * (logarithms - first)])

    return at(_least_squares(residuals, first))


def _least_squares(residuals: Callable[[np.ndarray], np.ndarray], at: np.ndarray) -> np.ndarray:
    """Levenberg-Marquardt (Marquardt 1963) with numerical derivatives."""
    damping = 1e-2
    now = residuals(at)
    for _ in range(MOST_ITERATIONS):
        moved = at + DIFFERENCE * np.eye(len(at))
        slopes = np.stack([(residuals(each) - now) / DIFFERENCE for each in moved], axis=1)
        normal = slopes.T @ slopes
        step_by = np.linalg.solve(
            normal + damping * np.diag(np.diag(normal) + 1e-9), -slopes.T @ now
        )
        step_by = np.clip(step_by, -1, 1)
        then = residuals(at + step_by)
        if then @ then < now @ now:
            is_done = now @ now - then @ then < 1e-10
            at, now, damping = at + step_by, then, damping / 3
            if is_done:
                break
        else:
            damping *= 4
            if damping > 1e8:
                break
    return at
