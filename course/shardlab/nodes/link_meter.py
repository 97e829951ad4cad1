"""The bytes on each node's link over time, while a function runs."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from shardlab.nodes.cluster import Cluster
from shardlab.run.links import Links

READ_S = 0.02  # how often the links are read
MAX_READINGS = 512  # then every second one is dropped, and they are read half as often
# A reading has one time.  One that took longer is repeated: this process may have been paused.
MAX_READING_S, TRIES = 0.0005, 3


class LinkMeter:
    """Takes a reading at once, then one whenever `read_if_due` finds that it is time."""

    def __init__(
        self, cluster: Cluster, origin_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster, self._origin_s, self._clock = cluster, origin_s, clock
        self._every_s = READ_S
        self._readings: list[tuple[float, list[tuple[int, int]]]] = []
        self.read()

    def read_if_due(self) -> None:
        if self._clock() - self._readings[-1][0] >= self._every_s:
            self.read()

    def read(self) -> None:
        for _ in range(TRIES):
            before_s = self._clock()
            counted = self._cluster.link_bytes()
            after_s = self._clock()
            if after_s - before_s <= MAX_READING_S:
                break
        at_s = (before_s + after_s) / 2
        # One frame more or less would be a wrong rate between two readings at almost the same time
        if len(self._readings) > 1 and at_s - self._readings[-1][0] < self._every_s / 2:
            self._readings.pop()
        self._readings.append((at_s, counted))
        if len(self._readings) > MAX_READINGS:
            self._readings = self._readings[::2]
            self._every_s *= 2

    def links(self, bits_per_s: float | None) -> Links:
        """All readings so far; times are from ``origin_s`` on, bytes from the first reading on."""
        times_s, counted = zip(*self._readings, strict=True)
        counts = np.array(counted, dtype=np.int64)  # [readings, nodes, 2]
        sent, received = np.moveaxis(counts - counts[0], 2, 0)
        return Links(np.array(times_s) - self._origin_s, sent, received, bits_per_s)
