"""One training step of FSDP, unit by unit: which unit is whole when, and the bytes that are live.

The rules are those of `fully_shard` in torch 2.13 (the idea: Zhao et al., "PyTorch FSDP", VLDB
2023). The tests compare order and peak with a run on real ranks.

1. Each rank always keeps its shard, 1/N of all parameters. A unit's all-gather fills a buffer,
   which is copied to the parameters; then the unit is **whole**.
2. Forward, unit by unit: gather, copy, start the all-gathers of the next units (as many as
   ``forward_prefetch``), compute, free. A buffer stays until the next unit has been copied.
3. Backward, from the last unit to the first: gather and copy again, start the all-gathers of the
   next units, compute, free the parameters, copy the gradients to a buffer, reduce-scatter. That
   buffer stays until the next unit has gradients to send.
4. The root has what belongs to no unit (embedding, head). It is gathered first and stays whole
   until backward ends, because backward would need it again at once. Its gradients are sent last:
   the gradient of an embedding is complete only then.

Simplified: units have equal size and one dtype; of the root's own computation only the head takes
time; all ranks have the same times; a transfer starts when the unit that asks for it begins to
compute. (On a GPU, FSDP's calls run ahead of the computation, so it may start earlier.)
Activations, the optimizer, and the all-reduce of HSDP are not included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

CATEGORIES = ("parameters", "gradients", "buckets")  # of live bytes, from the bottom
KINDS = ("gather", "whole", "forward", "backward", "reduce")
ROOT = 0  # its row; unit k has row k + 1


@dataclass(frozen=True)
class StepSettings:
    """Raises ValueError for impossible settings.

    units: number of units besides the root.
    parameter_bytes: of the whole model.  root_bytes: of it, in the root.
    world_size: N ranks, each with 1/N of every unit.
    forward_prefetch, backward_prefetch: units gathered ahead of the one that computes. FSDP2's
        defaults are 0 and 1; see `set_modules_to_forward_prefetch`.
    reshard_after_forward: False keeps every unit whole from forward to backward.
    overlap: transfers run while a unit computes, as on a GPU. False: one after the other, as with
        gloo, where FSDP2 waits for each all-gather.
    forward_s: time to compute the forward pass of all units; backward takes ``backward_ratio``
        times as long.
    head_s: between the last unit's forward and its backward: the head, the loss.
    link_bytes_per_s, message_s: a rank sends and receives (N − 1)/N of a unit at this rate, and
        each collective takes message_s in addition.
    copy_bytes_per_s: between buffers and parameters or gradients.
    """

    units: int = 8
    forward_prefetch: int = 1
    backward_prefetch: int = 1
    reshard_after_forward: bool = True
    world_size: int = 8
    parameter_bytes: float = 2e9
    root_bytes: float = 0.1e9
    overlap: bool = True
    forward_s: float = 0.04
    backward_ratio: float = 2.0
    head_s: float = 0.0
    link_bytes_per_s: float = 50e9
    message_s: float = 20e-6
    copy_bytes_per_s: float = 2e12

    def __post_init__(self) -> None:
        whole = {"units": 1, "forward_prefetch": 0, "backward_prefetch": 0, "world_size": 2}
        for name, least in whole.items():
            value = getattr(self, name)
            if isinstance(value, bool) or value != int(value) or value < least:
                raise ValueError(f"{name}={value}: must be a whole number, {least} or more")
            object.__setattr__(self, name, int(value))
        for name in ("parameter_bytes", "forward_s", "link_bytes_per_s", "copy_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be above 0")
        for name in ("root_bytes", "backward_ratio", "head_s", "message_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be 0 or more")
        if self.root_bytes >= self.parameter_bytes:
            raise ValueError("root_bytes: must leave some of the parameters to the units")

    @property
    def unit_bytes(self) -> float:
        return (self.parameter_bytes - self.root_bytes) / self.units

    def transfer_s(self, whole_bytes: float) -> float:
        """An all-gather or reduce-scatter of a unit with this many bytes."""
        share = (self.world_size - 1) / self.world_size
        return self.message_s + share * whole_bytes / self.link_bytes_per_s


class Span(NamedTuple):
    """row: of the unit.  kind: one of `KINDS`; "whole" lasts from the copy to the release."""

    row: int
    kind: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class UnitTimeline:
    """A step on one rank, simulated or recorded.

    names: of the rows.  live: category -> bytes from ``times_s[i]`` on.
    """

    names: tuple[str, ...]
    spans: tuple[Span, ...]
    times_s: tuple[float, ...]
    live: Mapping[str, Sequence[float]]
    step_s: float

    @cached_property
    def totals(self) -> tuple[float, ...]:
        return tuple(map(sum, zip(*(self.live[name] for name in CATEGORIES), strict=True)))

    @property
    def peak_bytes(self) -> float:
        return max(self.totals)

    @property
    def peak_s(self) -> float:
        """When the peak is first reached."""
        return self.times_s[self.totals.index(self.peak_bytes)]

    @property
    def messages(self) -> dict[str, int]:
        """Number of all-gathers ("gather") and reduce-scatters ("reduce")."""
        counts = Counter(span.kind for span in self.spans)
        return {kind: counts[kind] for kind in ("gather", "reduce")}

    @property
    def order(self) -> list[tuple[str, int]]:
        """(kind, row) of all transfers and computations, by their start; not of the root's own
        computation, which surrounds that of the units."""
        listed = [
            span
            for span in self.spans
            if span.kind != "whole" and (span.row != ROOT or span.kind in ("gather", "reduce"))
        ]
        return [(span.kind, span.row) for span in sorted(listed, key=lambda span: span.start_s)]


def simulate_step(settings: StepSettings) -> UnitTimeline:
    """Forward and backward of one rank. ``unit_life_model.js`` computes the same."""
    return _Step(settings).run()


class _Step:
    def __init__(self, settings: StepSettings) -> None:
        self.settings = settings
        self.bytes = [settings.root_bytes, *[settings.unit_bytes] * settings.units]  # by row
        self.now_s = 0.0  # of the computation
        self.link_s = 0.0  # when the link is free
        self.gathered_s: dict[int, float] = {}  # row -> end of its all-gather, until it is copied
        self.whole_s: dict[int, float] = {}  # row -> since when it is whole
        self.kept: int | None = None  # row whose buffer stays until the next one is copied
        self.sent: int | None = None  # row whose gradients were sent last
        self.sent_s = 0.0
        self.spans: list[Span] = []
        shards = settings.parameter_bytes / settings.world_size
        self.changes: list[tuple[float, str, float]] = [(0.0, "parameters", shards)]

    def run(self) -> UnitTimeline:
        settings, count = self.settings, self.settings.units
        self.use(ROOT, in_forward=True)
        for row in range(1, count + 1):
            self.use(row, in_forward=True)
            for ahead in range(row + 1, min(row + settings.forward_prefetch, count) + 1):
                self.gather(ahead)
            self.compute(row, "forward", settings.forward_s / count)
            if settings.reshard_after_forward:
                self.free(row)
        self.now_s += settings.head_s
        self.change("buckets", -self.bytes[self.kept or ROOT])
        turn_s = self.now_s
        for row in range(count, 0, -1):
            self.use(row, in_forward=False)
            for ahead in range(row - 1, max(row - settings.backward_prefetch, 1) - 1, -1):
                self.gather(ahead)
            self.change("gradients", self.bytes[row])
            self.compute(row, "backward", settings.backward_ratio * settings.forward_s / count)
            self.free(row)
            self.reduce(row)
        self.change("gradients", self.bytes[ROOT])
        if settings.root_bytes:
            self.spans.append(Span(ROOT, "forward", self.whole_s[ROOT], turn_s))
            self.spans.append(Span(ROOT, "backward", turn_s, self.now_s))
            self.free(ROOT)
            self.reduce(ROOT)
        self.now_s = max(self.now_s, self.link_s)
        self.change("buckets", -self.bytes[self.sent or ROOT])
        return self.timeline()

    def change(self, category: str, count: float) -> None:
        self.changes.append((self.now_s, category, count))

    def transfer(self, row: int, kind: str) -> float:
        """Returns its end."""
        start_s = max(self.now_s, self.link_s)
        self.link_s = start_s + self.settings.transfer_s(self.bytes[row])
        self.spans.append(Span(row, kind, start_s, self.link_s))
        if not self.settings.overlap:
            self.now_s = self.link_s
        return self.link_s

    def gather(self, row: int) -> None:
        if row not in self.gathered_s and row not in self.whole_s:
            self.change("buckets", self.bytes[row])
            self.gathered_s[row] = self.transfer(row, "gather")

    def use(self, row: int, in_forward: bool) -> None:
        """Wait until the unit is whole."""
        if row in self.whole_s or not self.bytes[row]:
            return
        self.gather(row)
        self.now_s = max(self.now_s, self.gathered_s.pop(row))
        self.change("parameters", self.bytes[row])
        self.copy(row)
        released: int | None = row
        if in_forward:
            released, self.kept = self.kept, row
        if released is not None:
            self.change("buckets", -self.bytes[released])
        self.whole_s[row] = self.now_s

    def copy(self, row: int) -> None:
        self.now_s += self.bytes[row] / self.settings.copy_bytes_per_s

    def compute(self, row: int, kind: str, seconds: float) -> None:
        self.spans.append(Span(row, kind, self.now_s, self.now_s + seconds))
        self.now_s += seconds

    def free(self, row: int) -> None:
        self.spans.append(Span(row, "whole", self.whole_s.pop(row), self.now_s))
        self.change("parameters", -self.bytes[row])

    def reduce(self, row: int) -> None:
        if self.sent is not None:
            self.now_s = max(self.now_s, self.sent_s)
            self.change("buckets", -self.bytes[self.sent])
        self.change("buckets", self.bytes[row])
        self.copy(row)
        self.change("gradients", -self.bytes[row])
        self.change("gradients", self.bytes[row] / self.settings.world_size)
        self.sent, self.sent_s = row, self.transfer(row, "reduce")

    def timeline(self) -> UnitTimeline:
        live: dict[str, list[float]] = {name: [] for name in CATEGORIES}
        now = dict.fromkeys(CATEGORIES, 0.0)
        for _, category, count in self.changes:
            now[category] += count
            for name in CATEGORIES:
                live[name].append(now[name])
        names = ("root", *(f"unit {k}" for k in range(self.settings.units)))
        times_s = tuple(at_s for at_s, _, _ in self.changes)
        return UnitTimeline(names, tuple(self.spans), times_s, live, self.now_s)
