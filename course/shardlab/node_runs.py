"""Runs on several nodes that were recorded once, for machines that cannot make nodes.

With SHARDLAB_RECORD=1 in the environment, `launch` stores each run that has a name; chapters' tests
execute all of them.  A test compares the stored bytes with those of a new run.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import numpy as np

from shardlab.run import Links, Run, Traffic
from shardlab.run.call import MeasuredBlock

RECORDED = Path(__file__).with_name("recorded_runs") / "on_nodes"


def is_recording() -> bool:
    return os.environ.get("SHARDLAB_RECORD") == "1"


def save(name: str, run: Run) -> None:
    """Outputs, which must be plain data, and bytes; calls and printed text are not kept."""
    links = run.traffic.links
    stored = {
        "world_size": run.world_size,
        "outputs": run.outputs,
        "sent_bytes": run.traffic.sent_bytes.tolist(),
        "source": run.traffic.source,
        "nodes": run.traffic.nodes,
        "blocks": [asdict(block) for block in run.traffic.blocks],
        "links": links
        and {
            "time_s": links.time_s.round(6).tolist(),
            "sent_bytes": links.sent_bytes.tolist(),
            "received_bytes": links.received_bytes.tolist(),
            "bits_per_s": links.bits_per_s,
        },
        "startup_s": run.startup_s,
        "wall_s": run.wall_s,
    }
    (RECORDED / f"{name}.json").write_text(json.dumps(stored) + "\n", encoding="utf-8")


def load(name: str) -> Run:
    """Raises FileNotFoundError."""
    stored = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    world_size = stored["world_size"]
    blocks = [
        MeasuredBlock(**each | {"sent_bytes": (*each["sent_bytes"],)}) for each in stored["blocks"]
    ]
    links = stored["links"]
    return Run(
        world_size=world_size,
        device="cpu",
        device_reason="recorded",
        outputs=stored["outputs"],
        stdout=[""] * world_size,
        stderr=[""] * world_size,
        traffic=Traffic(
            np.array(stored["sent_bytes"], dtype=np.int64),
            f"recorded on another machine; {stored['source']}",
            tuple(blocks),
            nodes=tuple(stored["nodes"]),
            links=links
            and Links(
                np.array(links["time_s"]),
                np.array(links["sent_bytes"], dtype=np.int64),
                np.array(links["received_bytes"], dtype=np.int64),
                links["bits_per_s"],
            ),
        ),
        calls=[],
        startup_s=stored["startup_s"],
        wall_s=stored["wall_s"],
    )
