"""Where nodes cannot be made, a run that was recorded is shown, and says so."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from shardlab import launch, measure, node_runs
from shardlab.errors import NodesUnavailable
from shardlab.nodes import cluster
from shardlab.widgets import traffic_map


def summed(length: int) -> float:
    tensor = torch.ones(length)
    with measure("sum"):
        dist.all_reduce(tensor)
    return float(tensor[0])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(node_runs, "RECORDED", tmp_path)
    return tmp_path


@pytest.mark.ranks
def test_a_recorded_run_stands_in_for_nodes_that_cannot_be_made(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHARDLAB_RECORD", "1")
    run = launch(summed, 1000, world_size=4, nodes=2, recorded="sum", quiet=True)

    def read(self: cluster.Cluster) -> None:
        raise NodesUnavailable("nodes=2: this machine has none")

    monkeypatch.setattr(cluster.Cluster, "read", read)
    capsys.readouterr()
    shown = launch(summed, 1000, world_size=4, nodes=2, recorded="sum", quiet=True)
    assert capsys.readouterr().out == (
        "nodes=2: this machine has none.\nA recorded run is shown instead.\n"
    )
    assert shown.outputs == run.outputs == [4.0] * 4
    assert np.array_equal(shown.traffic.sent_bytes, run.traffic.sent_bytes)
    assert np.array_equal(shown.traffic["sum"].between_nodes, run.traffic["sum"].between_nodes)
    links, read = shown.traffic.links, run.traffic.links
    assert links is not None
    assert read is not None
    assert links.time_s == pytest.approx(read.time_s, abs=1e-6)
    assert np.array_equal(links.sent_bytes, read.sent_bytes)
    assert np.array_equal(links.received_bytes, read.received_bytes)
    assert links.bits_per_s == read.bits_per_s
    for mode in ("ranks", "links"):
        assert "Recorded on another machine" in traffic_map(shown, mode=mode).static_svg()
    with pytest.raises(NodesUnavailable, match="has none"):
        launch(summed, 1000, world_size=4, nodes=2, quiet=True)


@pytest.mark.parametrize(
    "path", sorted(node_runs.RECORDED.glob("*.json")), ids=lambda path: path.stem
)
def test_each_recorded_run_is_shown_by_a_chapter(path: Path) -> None:
    chapters = Path(__file__).parents[2] / "course/chapters"
    text = "".join(each.read_text() for each in chapters.glob(f"{path.stem[:2]}_*.nb.py"))
    assert re.search(rf'\brecorded"?[=:] ?"{path.stem}"', text)
    run = node_runs.load(path.stem)
    assert len(run.outputs) == run.world_size == len(run.traffic.nodes)
    links = run.traffic.links
    assert links is not None
    between = run.traffic.between_nodes
    assert links.sent_bytes[-1] == pytest.approx(between.sum(axis=1) - between.diagonal(), rel=0.03)
