"""Recorded steps, each of which loses time to one cause; lab 16 asks for it.

``bottlenecks.json`` was recorded from real runs, with and without the cause.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from shardlab.run import Call, MeasuredBlock, Run, Span, Traffic

RECORDED = Path(__file__).with_suffix(".json")
CAUSES = ("straggler", "slow loader", "small messages", "synchronization", "no overlap")
COMPUTE, LOADER = "compute", "loader"
Recorded = dict[str, Any]
Interval = tuple[float, float]


def load(path: Path = RECORDED) -> dict[str, Recorded]:
    """{name: recorded step}.

    A recorded step has its ``cause`` and ``place``; ``step_s`` and ``repaired_s``, its time with
    and without the cause; ``summary``, which the exercise gets; by rank, intervals [start_s, end_s]
    in which it computes (``compute``) and waits for data (``loader``); and ``calls``, the
    collectives in order: [line, op, bytes, [start_s, end_s] on each rank].
    """
    found: dict[str, Recorded] = json.loads(path.read_text(encoding="utf-8"))
    return found


def dump(recorded: dict[str, Recorded], path: Path) -> None:
    """Writes what `load` reads, a line for each field."""
    entries = []
    for name, step in recorded.items():
        fields = ",\n".join(f"  {json.dumps(key)}: {json.dumps(step[key])}" for key in step)
        entries.append(f" {json.dumps(name)}: {{\n{fields}\n }}")
    path.write_text("{\n" + ",\n".join(entries) + "\n}\n", encoding="utf-8")


def intervals(recorded: Recorded) -> tuple[list[list[Interval]], list[list[Interval]]]:
    """Of computation and of calls, by rank."""
    ranks = range(len(recorded[COMPUTE]))
    calls = [[by_rank[rank] for _, _, _, by_rank in recorded["calls"]] for rank in ranks]
    return recorded[COMPUTE], calls


def as_run(recorded: Recorded) -> Run:
    """For `timeline`: computation and calls as spans, and blocks of the loader.

    No profiler saw them: the recorded ranks slept in measured blocks instead of computing and
    loading, so that they did not wait for each other's cores.
    """
    ranks = tuple(range(len(recorded[COMPUTE])))
    loading = tuple(
        MeasuredBlock(LOADER, rank, start_s, end_s, (0,) * len(ranks))
        for rank in ranks
        for start_s, end_s in recorded[LOADER][rank]
    )
    calls = [
        Call(
            rank=rank, op=op, bytes=size, peer=None, group=ranks, start_s=start_s, end_s=end_s,
            source=line, seq=seq, dtype="float32", shape=(size // 4,), offset=0,
            storage_numel=size // 4,
        )
        for seq, (line, op, size, by_rank) in enumerate(recorded["calls"])
        for rank, (start_s, end_s) in enumerate(by_rank)
    ]  # fmt: skip
    spans = [
        Span(rank, COMPUTE, "compute", start_s, end_s)
        for rank in ranks
        # An empty span: profiled from the beginning of the step, in which ranks may load first
        for start_s, end_s in [(0.0, 0.0), *recorded[COMPUTE][rank]]
    ]
    spans += [
        Span(call.rank, f"gloo:{call.op}", "communication", call.start_s, call.end_s or 0.0)
        for call in calls
    ]
    sent = np.zeros((len(ranks), len(ranks)), dtype=np.int64)
    return Run(
        world_size=len(ranks),
        device="cpu",
        device_reason="recorded",
        outputs=[None] * len(ranks),
        stdout=[""] * len(ranks),
        stderr=[""] * len(ranks),
        traffic=Traffic(sent, "recorded on another machine, without its bytes", loading),
        calls=calls,
        spans=sorted(spans, key=lambda span: span.start_s),
        spans_by="measured blocks; compute and loader are sleeps",
        startup_s=0.0,
        wall_s=recorded["step_s"],
    )
