"""The alpha-beta model of communication time, and its fit to measurements.

    seconds = alpha_s · messages + sent_bytes / bytes_per_s

Alpha is the latency, the cost of a message of any size.  Beta is the time per byte,
1 / bytes_per_s.  This is the cost model of Thakur, Rabenseifner and Gropp, "Optimization of
Collective Communication Operations in MPICH", IJHPCA 19(1), 2005.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class AlphaBeta:
    alpha_s: float
    bytes_per_s: float  # inf if the measurements show no cost per byte

    def seconds(self, messages: ArrayLike, sent_bytes: ArrayLike) -> NDArray[np.float64]:
        """Time of ``messages`` sequential messages with ``sent_bytes`` bytes in total."""
        latency_s = self.alpha_s * np.asarray(messages, dtype=float)
        return latency_s + np.asarray(sent_bytes, dtype=float) / self.bytes_per_s

    @classmethod
    def fit(cls, messages: ArrayLike, sent_bytes: ArrayLike, seconds: ArrayLike) -> AlphaBeta:
        """The model with the least squared relative error, with both costs non-negative.

        messages, sent_bytes, seconds: [M], one entry per measurement.  With absolute errors, the
        largest tensors would dominate and alpha would be noise.

        Raises ValueError for fewer than two different measurements, or a time that is not positive.
        """
        costs = np.stack(np.broadcast_arrays(messages, sent_bytes), axis=-1).astype(float)  # [M, 2]
        measured_s = np.asarray(seconds, dtype=float)
        if costs.shape != (*measured_s.shape, 2) or measured_s.ndim != 1:
            raise ValueError("messages, sent_bytes and seconds need one entry per measurement")
        if not (measured_s > 0).all():
            raise ValueError("all measured times must be above 0")
        if np.linalg.matrix_rank(costs / np.maximum(costs.max(axis=0), 1)) < 2:
            raise ValueError("measure at least two sizes to separate latency from bandwidth")
        alpha_s, beta_s = _non_negative_fit(costs / measured_s[:, None])
        return cls(alpha_s, 1 / beta_s if beta_s else math.inf)


def _non_negative_fit(rows: NDArray[np.float64]) -> tuple[float, float]:
    """The x ≥ 0 with rows [M, 2] · x closest to 1: unconstrained, else with one entry set to 0."""
    scale = rows.max(axis=0)
    ones = np.ones(len(rows))
    free = np.linalg.lstsq(rows / scale, ones, rcond=None)[0] / scale
    if (free >= 0).all():
        return float(free[0]), float(free[1])
    candidates = []
    for column in range(2):
        x = np.zeros(2)
        x[column] = rows[:, column].sum() / (rows[:, column] ** 2).sum()
        candidates.append((float(((rows @ x - 1) ** 2).sum()), x))
    best = min(candidates, key=lambda candidate: candidate[0])[1]
    return float(best[0]), float(best[1])
