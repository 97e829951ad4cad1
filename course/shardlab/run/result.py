"""The result of a launch: outputs, printed text, traffic and calls, by rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardlab.run import chrome_trace
from shardlab.run.call import Call, MeasuredBlock, Span
from shardlab.run.links import Links
from shardlab.run.live_memory import Memory
from shardlab.run.states import Recorded, State, best_source, states_of
from shardlab.run.step_time import StepTime

Bytes = NDArray[np.int64]


@dataclass(frozen=True)
class Traffic(Mapping[str, "Traffic"]):
    """Bytes that ranks sent each other; ``traffic["label"]`` has those of a measured block."""

    sent_bytes: Bytes  # [N, N]: row sends to column
    source: str  # how it was counted
    blocks: tuple[MeasuredBlock, ...] = field(default=(), repr=False)
    unseen_bytes: int | None = (
        None  # on the network, but not through a counted socket; None: unknown
    )
    stored_bytes: int = 0  # written to the rendezvous store during the run
    collectives: int | None = None  # messages of gloo's collectives on the wire; None: unknown
    nodes: tuple[int, ...] = ()  # the node of each rank; (): one node
    # Of the nodes, over the whole run; None on one node, in a job, and for a measured block
    links: Links | None = field(default=None, repr=False)

    @property
    def received_bytes(self) -> Bytes:
        """[N, N]: row receives from column."""
        return self.sent_bytes.T

    @property
    def sent_by_rank(self) -> Bytes:
        """[N] bytes that each rank sent."""
        return self.sent_bytes.sum(axis=1)

    @property
    def received_by_rank(self) -> Bytes:
        """[N] bytes that each rank received."""
        return self.sent_bytes.sum(axis=0)

    @property
    def between_nodes(self) -> Bytes:
        """[nodes, nodes] bytes: row sends to column; on the diagonal, within each node."""
        nodes = np.asarray(self.nodes or [0] * len(self.sent_bytes), dtype=np.int64)
        member = (nodes == np.arange(nodes.max() + 1)[:, None]).astype(np.int64)
        between: Bytes = member @ self.sent_bytes @ member.T
        return between

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(block.label for block in self.blocks))

    def __getitem__(self, label: str) -> Traffic:
        blocks = tuple(block for block in self.blocks if block.label == label)
        if not blocks:
            known = ", ".join(map(repr, self.labels)) or "none"
            raise KeyError(f"no measured block is labeled {label!r}; measured: {known}")
        sent = np.zeros_like(self.sent_bytes)
        for block in blocks:
            sent[block.rank] += np.asarray(block.sent_bytes, dtype=np.int64)
        return Traffic(sent, self.source, blocks, nodes=self.nodes)

    def __iter__(self) -> Iterator[str]:
        return iter(self.labels)

    def __len__(self) -> int:
        return len(self.labels)


@dataclass
class Run:
    """All results of one launch; lists are indexed by rank."""

    world_size: int
    device: str  # "cpu" or "cuda"; `device_reason` says why
    device_reason: str
    outputs: list[Any]
    stdout: list[str]
    stderr: list[str]
    traffic: Traffic
    calls: list[Call]
    startup_s: float  # from the call of launch() until every rank could communicate
    wall_s: float  # from the call of launch() until its return
    # By rank and label: bytes it had sent, counted outside, when it got each value that was held
    # back (RankSet.run); None where they could not be counted.
    sent_before: Sequence[Mapping[str, Sequence[int | None]]] = ()
    # Operators and communication of ranks that ran `with profile():`, by start time
    spans: Sequence[Span] = ()
    spans_by: str = "torch.profiler"  # what recorded them, in the words of a caption
    _memory: Memory | None = field(default=None, repr=False)

    @property
    def memory(self) -> Memory:
        """Live bytes by rank and category. Raises ValueError if they were not recorded."""
        if self._memory is None:
            raise ValueError("this run recorded no memory: use launch(..., memory=True)")
        return self._memory

    def calls_of(self, rank: int) -> list[Call]:
        """The calls of one rank, in the order in which they were recorded."""
        return [call for call in self.calls if call.rank == rank]

    def calls_in(self, label: str, rank: int = 0) -> list[Call]:
        """The calls that a rank began inside its ``with measure(label):`` blocks.

        Empty if that rank has none. Raises KeyError if no rank has one.
        """
        blocks = self.traffic[label].blocks
        spans = [(block.start_s, block.end_s) for block in blocks if block.rank == rank]
        return [
            call
            for call in self.calls_of(rank)
            if any(start <= call.start_s <= end for start, end in spans)
        ]

    def step_time(self, label: str | None = None, by: str = "records") -> list[StepTime]:
        """Each rank's seconds by what it was doing, in its passes of ``with measure(label):``
        together, or in all of what is recorded.

        by="records": from the calls and measured blocks. A rank stands still from the start of a
        blocking call, or of `work.wait()`, to its end, with the handing over between threads; all
        other time counts as computing, also where nothing runs. Waits in C++, such as DTensor's
        and DDP's at the end of backward, are not seen: they count as overlapped. On CPUs, an
        asynchronous send or receive counts as in progress until it was waited for.

        by="profiler": from the spans of ``with profile():``. A rank computes while one of its
        operators runs, and stands still while only communication does, whoever waits for it;
        Python between two operators is other_s, or exposed_s if communication is in progress. All
        of a communication that matches no call, as on GPUs, counts as in progress. Without a
        label, time counts from the first to the last span or, while some rank was profiled, loader.
        Profiling itself takes time, which is in the step.

        In both, a communication is in progress once the last of its ranks has begun it; until
        then, ranks that stand still in it are waiting.

        Raises KeyError for a label that was not measured, and ValueError if there are no spans.
        """
        return [StepTime.of(states) for states in self.states(label, by)]

    def states(self, label: str | None = None, by: str = "records") -> list[list[State]]:
        """By rank: what it was doing from when to when, by time; see `step_time`."""
        if label is not None:
            _ = self.traffic[label]  # raises for an unknown label
        return states_of(self.recorded, label, by)

    @property
    def recorded(self) -> Recorded:
        """All that has a time: calls, measured blocks, spans."""
        return Recorded(self.world_size, self.calls, self.traffic.blocks, self.spans)

    def save_trace(self, path: str | Path) -> Path:
        """Write what all ranks did for https://ui.perfetto.dev or chrome://tracing.

        A process for each rank, with its calls, measured blocks and spans; arrows lead from each
        send to its receive. If there are spans or blocks of ``measure("loader")``, also its states.
        Returns the path.
        Raises OSError if it cannot be written; a file that was there is then unchanged.
        """
        did: list[chrome_trace.Did] = [*self.traffic.blocks, *self.calls, *self.spans]
        if (by := best_source(self.recorded)) is not None:
            did += [state for own in self.states(by=by) for state in own if state.name != "other"]
        trace = chrome_trace.of(did, self.world_size, self.traffic.nodes)
        return chrome_trace.save(trace, Path(path))

    def __repr__(self) -> str:
        sent = int(self.traffic.sent_bytes.sum())
        return (
            f"<Run: {self.world_size} ranks on {self.device} ({self.device_reason}), "
            f"{len(self.calls)} calls, "
            f"{sent:,} bytes sent, {self.wall_s:.2f} s>"
        )
