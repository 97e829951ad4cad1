"""The benchmark still runs; its figures are not checked, as they depend on the machine's load."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.ranks
def test_every_contender_runs(tmp_path: Path) -> None:
    figures_path = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.launch", "--tiny", "--json", str(figures_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "launch at several world sizes" in done.stdout
    figures = json.loads(figures_path.read_text())
    assert set(figures["seconds"]) == {
        "shardlab.launch, warm",
        "bare fork + gloo",
        "mp.spawn",
        "notebook_launcher",
        "torchrun --standalone",
    }
    assert all(seconds > 0 for seconds in figures["seconds"].values())
    assert len(figures["goals"]) == 6
