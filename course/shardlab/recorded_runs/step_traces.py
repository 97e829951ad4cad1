"""Recorded calls of one training step, by method: DDP, ZeRO-2, FSDP, HSDP, TP.

``step_traces.json`` was recorded from real runs; lab 06 looks at it and asks for the methods.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).with_suffix(".json")
METHODS = ("DDP", "ZeRO-2", "FSDP", "FSDP, not resharded", "HSDP", "TP")
Trace = dict[str, Any]


def load(path: Path = RECORDED) -> dict[str, tuple[str, Trace]]:
    """{name: (method, trace)}.

    A trace has what one of ``world_size`` ranks called in a step, in order: ``calls``, a list of
    {"op", "bytes", "ranks", "phase"}.  ``bytes`` are of the tensor that the rank passed in: for an
    all-gather its own slice, for a reduce-scatter the whole tensor.  ``ranks`` are those of the
    call's group, ``phase`` is "forward", "backward" or "step".  ``parameter_bytes`` are those of
    the whole model, ``activation_bytes`` those of the tensor that one block passes to the next, for
    all samples of the batch that the rank works on.
    """
    fields = ("op", "bytes", "ranks", "phase")
    return {
        name: (
            found["method"],
            {
                **found["trace"],
                "calls": [dict(zip(fields, call, strict=True)) for call in found["trace"]["calls"]],
            },
        )
        for name, found in json.loads(path.read_text(encoding="utf-8")).items()
    }


def dump(traces: dict[str, tuple[str, Trace]], path: Path) -> None:
    """Writes what `load` reads, a line for each call."""
    lines = []
    for name, (method, trace) in traces.items():
        sizes = {key: value for key, value in trace.items() if key != "calls"}
        calls = ",\n".join(f"  {json.dumps(list(call.values()))}" for call in trace["calls"])
        head = json.dumps(sizes)[:-1]
        lines.append(
            f' {json.dumps(name)}: {{"method": {json.dumps(method)}, "trace": {head}, "calls": [\n'
            f"{calls}\n ]}}}}"
        )
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
