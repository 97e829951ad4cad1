import json
from xml.etree import ElementTree

import pytest
from traitlets import TraitError

from shardlab.trace.disk_recorder import DiskChange
from shardlab.widgets import disk_moments
from tests.shardlab.widgets.synthetic import make_run

BEFORE = {"rank_0": b"2", "rank_1": b"2"}


def run_of(*by_rank):
    run = make_run(len(by_rank), [])
    run.outputs = [list(changes) for changes in by_rank]
    return run


def overwritten(rank, at_s, *, synced=False):
    path = f"rank_{rank}"
    changes = [
        DiskChange(at_s, "create", path),
        DiskChange(at_s + 1, "write", path, data=b"4"),
    ]
    return [*changes, *([DiskChange(at_s + 2, "fsync", path)] if synced else [])]


def load(folder):
    return [int((folder / f"rank_{rank}").read_bytes()) for rank in range(2)]


def picture():
    saves = {
        "plain": (BEFORE, run_of(overwritten(0, 0), overwritten(1, 10))),
        "synced": (
            BEFORE,
            run_of(overwritten(0, 0, synced=True), overwritten(1, 10, synced=True)),
        ),
    }
    return disk_moments(saves, load)


def test_each_moment_shows_what_a_restart_would_load():
    widget = picture()
    assert widget.found("plain") == ("old", "broken", "mix", "broken", "new")
    assert widget.found("plain", "power") == ("old", *["broken"] * 4)
    power = ("old", "broken", "broken", "mix", "broken", "broken", "new")
    assert widget.found("synced", "power") == power


def test_moments_of_all_ranks_are_in_chronological_order():
    texts = [moment["text"] for moment in picture().scene["saves"][0]["moments"]]
    assert texts == [
        "before the save",
        "rank 0 opened rank_0, now empty",
        "rank 0 wrote 1 B to rank_0",
        "rank 1 opened rank_1, now empty",
        "rank 1 wrote 1 B to rank_1",
    ]


def test_it_opens_at_a_moment_where_a_restart_would_fail_and_explains_it():
    widget = picture()
    assert widget.settings == {"save": "plain", "moment": 2}
    assert "a restart finds a mix of both (4, 2)" in widget.summary()
    ElementTree.fromstring(widget.static_svg())
    json.dumps(widget.scene)


def test_code_can_select_only_existing_moments():
    widget = picture()
    widget.settings = {"moment": 4}
    assert "the new one (4, 4)" in widget.summary()
    with pytest.raises(TraitError, match="moment must be 0 to 4"):
        widget.settings = {"moment": 5}
    with pytest.raises(TraitError, match="save must be"):
        widget.settings = {"save": "other"}


def test_a_run_without_changes_raises():
    with pytest.raises(ValueError, match="nothing to draw"):
        disk_moments({"save": (BEFORE, run_of([], []))}, load)
