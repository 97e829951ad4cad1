"""What each node's link to the switch carried, over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Links:
    """Readings of the links' own counters, about every 20 ms; fewer in runs of more than 10 s.

    They count whole frames: headers, acknowledgements and packets sent again are included, so they
    are 1 to 3 % above what the ranks sent each other.
    """

    time_s: Numbers  # [T] seconds since the ranks were released, as in `Call`
    sent_bytes: NDArray[np.int64]  # [T, nodes] by each node since the first reading
    received_bytes: NDArray[np.int64]  # [T, nodes]
    bits_per_s: float | None  # of each link, in each direction; None: as fast as the machine

    @property
    def sent_bits_per_s(self) -> Numbers:
        """[T − 1, nodes] between each reading and the next."""
        return self._rate(self.sent_bytes)

    @property
    def received_bits_per_s(self) -> Numbers:
        """[T − 1, nodes] between each reading and the next."""
        return self._rate(self.received_bytes)

    def _rate(self, counted: NDArray[np.int64]) -> Numbers:
        rate: Numbers = 8 * np.diff(counted, axis=0) / np.diff(self.time_s)[:, None]
        return rate

    def utilization(self, start_s: float, end_s: float) -> tuple[Numbers, Numbers]:
        """[nodes] sent and received: the share of what a link can carry in this time that it did
        carry.  Raises ValueError for links without a speed."""
        if self.bits_per_s is None:
            raise ValueError("these links have no speed: pass link_bits_per_s to launch")
        can_carry_bytes = self.bits_per_s / 8 * (end_s - start_s)
        sent, received = (
            (self._at(end_s, counted) - self._at(start_s, counted)) / can_carry_bytes
            for counted in (self.sent_bytes, self.received_bytes)
        )
        return sent, received

    def since(self, start_s: float) -> Links:
        """The same from this time on; the first reading is interpolated."""
        later = self.time_s > start_s
        sent, received = (
            np.vstack([np.rint(self._at(start_s, counted)).astype(np.int64), counted[later]])
            for counted in (self.sent_bytes, self.received_bytes)
        )
        return Links(np.append(start_s, self.time_s[later]), sent, received, self.bits_per_s)

    def _at(self, time_s: float, counted: NDArray[np.int64]) -> Numbers:
        """[nodes] bytes at this time, interpolated between readings."""
        return np.array([np.interp(time_s, self.time_s, column) for column in counted.T])
