"""Each rank's live bytes by category over time, from a launch with ``memory=True``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.int64]

# What a storage is used for, from the bottom of a stacked plot to its top.
CATEGORIES = (
    "parameters",  # also those gathered temporarily
    "gradients",
    "optimizer",  # its states, and fp32 master weights
    "activations",  # made by the forward pass, whether or not backward needs them
    "buckets",  # passed to collectives, unless they are one of the above
    "other",  # inputs, temporaries of the backward pass and of the step
)


class ByteRange(NamedTuple):
    """The least and the most bytes a process was using at the end of the blocks with one label."""

    least: int
    most: int


@dataclass(frozen=True)
class Phase:
    """One pass of one rank through a part of a step.

    name: "forward" (the outermost module's call, with gradients on), "backward", "step" (of an
    optimizer), or the label of a ``with measure(label):`` block.
    """

    name: str
    start_s: float  # since the ranks were released
    end_s: float
    at_end: Mapping[str, int]  # live bytes by category
    at_peak: Mapping[str, int]  # when their sum was highest within the phase


class UnitEvent(NamedTuple):
    """Something that FSDP2 did to one unit, which is what one `fully_shard` call groups.

    unit: the path of its module; "" for the root.
    event: "gather", "copy" (the unit is whole at its end), "free", "reduce", "before forward",
        "after forward", "before backward".
    """

    unit: str
    event: str
    start_s: float  # since the ranks were released
    end_s: float


@dataclass(frozen=True)
class RankMemory:
    """Bytes of one rank's live tensors.  Views count once; padding counts; memory that C++ code
    uses within one operator does not.

    The timeline keeps a few thousand samples of a long run, the peak among them.  Peaks and phases
    are exact.
    """

    times_s: NDArray[np.float64]  # [T]
    live_bytes: Mapping[str, Bytes]  # category -> [T]
    phases: tuple[Phase, ...]
    peak_s: float
    peaks: Mapping[str, int]  # category -> its highest value at any time
    at_peak: Mapping[str, int]  # when their sum was highest
    is_recorded: bool = True  # False: the rank ended before it could report
    # By label of a measured block: the process's private memory, tensors or not, read from outside.
    process_bytes: Mapping[str, ByteRange] = field(default_factory=dict)
    units: tuple[UnitEvent, ...] = ()  # in the order of their ends; empty without FSDP2

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were live at one time."""
        return sum(self.at_peak.values())

    @property
    def peak_phase(self) -> str:
        """The shortest phase that contains the peak; "" outside of any phase."""
        around = [phase for phase in self.phases if phase.start_s <= self.peak_s <= phase.end_s]
        return min(around, key=lambda phase: phase.end_s - phase.start_s).name if around else ""

    def peak_of(self, category: str) -> int:
        """The most bytes of one category that were live at one time."""
        return self.peaks[category]

    def at(self, moment: str) -> dict[str, int]:
        """Live bytes by category at "peak", at the "end", or when a phase's last pass ended.

        Raises KeyError for a phase that did not occur.
        """
        if moment == "peak":
            return dict(self.at_peak)
        if moment == "end":
            return {category: int(line[-1]) for category, line in self.live_bytes.items()}
        for phase in reversed(self.phases):
            if phase.name == moment:
                return dict(phase.at_end)
        known = ", ".join(dict.fromkeys(phase.name for phase in self.phases)) or "no phase"
        raise KeyError(f"no phase {moment!r}; recorded: {known}; always available: peak, end")

    @classmethod
    def from_summary(cls, summary: Any, origin_s: float) -> RankMemory:
        """From the summary of a rank's recorder; times are counted from ``origin_s``.

        Raises ValueError, TypeError, KeyError or IndexError for malformed data.
        """
        live = np.array(summary["live"], dtype=np.int64)
        times_s = np.array(summary["times"], dtype=float) - origin_s
        if live.shape != (len(CATEGORIES), len(times_s)):
            raise ValueError("live bytes need one row per category and one column per time")
        peak_s, at_peak = summary["peak"]
        return cls(
            times_s=times_s,
            live_bytes=dict(zip(CATEGORIES, live, strict=True)),
            phases=tuple(
                Phase(
                    str(name),
                    float(start) - origin_s,
                    float(end) - origin_s,
                    _by_category(at_end),
                    _by_category(most),
                )
                for name, start, end, at_end, most in summary["phases"]
            ),
            peak_s=float(peak_s) - origin_s,
            peaks=_by_category(summary["peaks"]),
            at_peak=_by_category(at_peak),
            units=tuple(
                UnitEvent(str(unit), str(event), float(start) - origin_s, float(end) - origin_s)
                for unit, event, start, end in summary.get("units", ())
            ),
        )


class Memory(Sequence[RankMemory]):
    """``run.memory[rank]``, and the same for all ranks at one moment."""

    def __init__(self, ranks: Sequence[RankMemory]) -> None:
        self._ranks = tuple(ranks)

    def __len__(self) -> int:
        return len(self._ranks)

    def __getitem__(self, rank):  # type: ignore[no-untyped-def]
        return self._ranks[rank]

    def __iter__(self) -> Iterator[RankMemory]:
        return iter(self._ranks)

    def __repr__(self) -> str:
        return f"<Memory of {len(self)} ranks, at most {self.peak_bytes.max():,} bytes live>"

    @property
    def peak_bytes(self) -> Bytes:
        """[N] the most bytes that were live on each rank at one time."""
        return np.array([rank.peak_bytes for rank in self], dtype=np.int64)

    def peak_of(self, category: str) -> Bytes:
        """[N] the most bytes of one category that were live on each rank at one time."""
        return np.array([rank.peak_of(category) for rank in self], dtype=np.int64)

    def at(self, moment: str) -> dict[str, Bytes]:
        """category -> [N] bytes at a moment (see `RankMemory.at`); "peak" is each rank's own."""
        by_rank = [rank.at(moment) for rank in self]
        return {
            category: np.array([bytes_of[category] for bytes_of in by_rank], dtype=np.int64)
            for category in CATEGORIES
        }


def _by_category(values: Any) -> dict[str, int]:
    return {name: int(value) for name, value in zip(CATEGORIES, values, strict=True)}


ZERO_BYTES = dict.fromkeys(CATEGORIES, 0)


def unknown_memory() -> RankMemory:
    """For a rank that ended before it could report."""
    zero = {category: np.zeros(1, np.int64) for category in CATEGORIES}
    return RankMemory(np.zeros(1), zero, (), 0.0, ZERO_BYTES, ZERO_BYTES, is_recorded=False)
