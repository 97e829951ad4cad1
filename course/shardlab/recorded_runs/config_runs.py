"""Recorded runs of DeepSpeed configurations through Accelerate: what was asked for, and what ran.

``config_runs.json`` was recorded from real engines; lab 12 shows it and asks for what runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).with_suffix(".json")
Asked = dict[str, Any]
Ran = dict[str, Any]


def load(path: Path = RECORDED) -> dict[str, tuple[Asked, Ran]]:
    """{name: (asked, ran)}.

    ``asked`` has the text of DeepSpeed's file, ``json_text``; the content of Accelerate's file,
    ``yaml``; and what the training script passes to Accelerate, ``script``.  ``ran`` is what the
    engine reported, and the samples that all ranks together used for the first optimizer step.
    """
    found = json.loads(path.read_text(encoding="utf-8"))
    return {name: (each["asked"], each["ran"]) for name, each in found.items()}


def dump(runs: dict[str, tuple[Asked, Ran]], path: Path) -> None:
    """Writes what `load` reads."""
    named = {name: {"asked": asked, "ran": ran} for name, (asked, ran) in runs.items()}
    path.write_text(json.dumps(named, indent=1) + "\n", encoding="utf-8")
