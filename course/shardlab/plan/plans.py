"""All legal layouts of a model on a cluster: what fits, and how long a step takes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from shardlab.plan.layouts import Layout, Layouts, enumerate_layouts
from shardlab.plan.memory import activation_bytes, state_bytes
from shardlab.plan.model import Cluster, Model
from shardlab.plan.step import Constants, Step, step

RESERVE = 0.08  # of a device's memory, for fragmentation and buffers: 5 to 10 % are usual


@dataclass(frozen=True)
class Plan:
    """One layout: seconds of a step by part, bytes on the fullest device by category."""

    layout: Layout
    parts_s: dict[str, float]
    memory_bytes: dict[str, float]
    mfu: float
    hfu: float
    fits: bool

    @property
    def step_s(self) -> float:
        return sum(self.parts_s.values())

    @property
    def total_bytes(self) -> float:
        return sum(self.memory_bytes.values())


@dataclass(frozen=True)
class Plans:
    """Many layouts; arrays are in their order."""

    model: Model
    cluster: Cluster
    batch: int
    layouts: Layouts
    step: Step
    memory_bytes: dict[str, np.ndarray]

    @cached_property
    def total_bytes(self) -> np.ndarray:
        return np.sum(list(self.memory_bytes.values()), axis=0)

    @cached_property
    def fits(self) -> np.ndarray:
        return self.total_bytes <= (1 - RESERVE) * self.cluster.capacity_bytes

    def best(self, count: int = 10) -> list[Plan]:
        """The fastest that fit, fastest first.

        Of layouts with equal times, the one with the least memory.
        """
        order = np.lexsort((self.total_bytes, self.step.seconds))
        return [self[at] for at in order[self.fits[order]][:count]]

    def fastest_that_does_not_fit(self) -> Plan | None:
        """What more memory would allow, if that is faster than all that fit."""
        seconds = np.where(self.fits, np.inf, self.step.seconds)
        if not len(seconds) or seconds.min() >= min(self.step.seconds[self.fits], default=np.inf):
            return None
        return self[int(seconds.argmin())]

    def __len__(self) -> int:
        return len(self.layouts)

    def __getitem__(self, at: int) -> Plan:
        return Plan(
            layout=self.layouts[at],
            parts_s={name: float(part[at]) for name, part in self.step.parts.items()},
            memory_bytes={name: float(part[at]) for name, part in self.memory_bytes.items()},
            mfu=float(self.step.mfu[at]),
            hfu=float(self.step.hfu[at]),
            fits=bool(self.fits[at]),
        )


def plan(
    model: Model,
    cluster: Cluster,
    batch: int,
    layouts: Layouts | None = None,
    *,
    constants: Constants | None = None,
    gradient_bytes: int = 2,
) -> Plans:
    """Memory and time of ``layouts``, by default of all legal ones, for ``batch`` sequences a step.

    constants: of a calibration; the default is a guess.  gradient_bytes: memory.state_bytes.
    """
    if batch < 1:
        raise ValueError(f"batch={batch}: expected a number of sequences, 1 or more")
    chosen = enumerate_layouts(model, cluster, batch) if layouts is None else layouts
    return Plans(
        model,
        cluster,
        batch,
        chosen,
        step(model, cluster, batch, chosen, constants),
        state_bytes(model, chosen, gradient_bytes=gradient_bytes)
        | activation_bytes(model, chosen, batch),
    )
