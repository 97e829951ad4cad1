"""State and geometry of the memory bars, without a browser."""

import json
from xml.etree import ElementTree

import numpy as np
import pytest
import traitlets

from shardlab.display.palette import MEMORY
from shardlab.estimate import memory
from shardlab.widgets import memory_bars
from shardlab.widgets.memory_bars import measured_bytes
from shardlab.widgets.memory_rows import LEFT, RIGHT, WIDTH, MemoryBarsLayout, ticks
from shardlab.widgets.scene import Rect, Text, text_width

MEASURED = {
    "parameters": [100.0, 100.0],
    "gradients": [90.0, 95.0],
    "optimizer": [50.0, 50.0],
    "activations": [400.0, 380.0],
}


def bars_of(widget, category):
    marks = widget._layout.marks(widget.settings)
    return [m for m in marks if isinstance(m, Rect) and m.fill == MEMORY[category] and m.width > 10]


def test_rows_match_the_stages_in_the_papers_figure() -> None:
    """7.5B parameters on 64 ranks: 120, 31.4, 16.6, 1.88 GB (arXiv 1910.02054, Figure 1)."""
    widget = memory_bars(7.5e9, 64)
    rows = widget._layout.stage_bars(widget.settings)
    assert [round(row.bytes / 1e9, 2) for row in rows] == [120, 31.41, 16.64, 1.88]
    svg = widget.static_svg()
    for words in ("120 GB", "31.4 GB", "16.6 GB", "1.88 GB"):
        assert words in svg
    ElementTree.fromstring(svg)


def test_widths_are_proportional_to_bytes() -> None:
    widget = memory_bars(7.5e9, 64, capacity_bytes=150e9)
    axis_bytes = widget._layout.axis_bytes(widget.settings)
    whole = bars_of(widget, "optimizer")[0]
    assert whole.width == pytest.approx(90e9 / axis_bytes * (RIGHT - LEFT))
    assert whole.x == pytest.approx(LEFT + 30e9 / axis_bytes * (RIGHT - LEFT))


def test_all_stages_have_one_scale() -> None:
    widget = memory_bars(7.5e9, 64)
    scales = {widget._layout.axis_bytes({**widget.settings, "stage": s}) for s in range(4)}
    assert scales == {1.04 * 120e9}
    assert all(m.x + m.width <= RIGHT for m in bars_of(widget, "optimizer"))


def test_the_chosen_stage_is_compared_with_the_opposite_one() -> None:
    assert "Stage 0: 120 GB on each rank's device, stage 3: 1.88 GB" in memory_bars().summary()
    solid = [
        bar.label for bar in memory_bars()._layout.stage_bars(memory_bars().settings) if bar.solid
    ]
    assert solid == ["stage 0", "stage 3"]


def test_the_summary_says_whether_the_stage_fits() -> None:
    widget = memory_bars(7.5e9, 64, stage=1, capacity_bytes=80e9)
    assert "Fits: 48.6 GB of 80 GB left" in widget.summary()
    assert widget.largest_model() == memory.largest_model(80e9, stage=1, world_size=64)
    widget.settings = widget.settings | {"stage": 0}
    assert "Does not fit: exceeds 80 GB by 40 GB" in widget.summary()
    assert "✗ does not fit" in widget.static_svg()


def test_units_are_never_mixed() -> None:
    for unit, other in (("GB", "GiB"), ("GiB", "GB")):
        svg = memory_bars(7.5e9, 64, capacity_bytes=80e9, unit=unit).static_svg()
        assert f" {unit}" in svg
        assert f" {other}" not in svg


def test_each_stage_offloads_what_it_supports() -> None:
    widget = memory_bars(1e9, 4, stage=3, offload="both")
    assert widget.states().device_bytes == 0
    assert widget.states(stage=2).device == {"parameters": 2e9, "gradients": 0, "optimizer": 0}
    assert widget.states(stage=0).host_bytes == 0
    assert memory_bars(1e9, 4, stage=1, offload=True).settings["offload"] == "optimizer"
    assert widget.largest_model() is None


def test_each_measured_rank_has_a_row() -> None:
    widget = memory_bars(25, 2, precision="fp32", measured=MEASURED, unit="GiB")
    rows = widget._layout.measured_bars()
    assert [row.label for row in rows] == ["rank 0", "rank 1"]
    assert [row.bytes for row in rows] == [640, 625]
    assert "activations" in widget.static_svg()


def test_with_very_many_ranks_only_the_fullest_of_each_group_is_shown() -> None:
    layout = MemoryBarsLayout(None, {"parameters": np.arange(1000.0)})
    rows = layout.measured_bars()
    assert len(rows) == 64
    assert rows[-1].label == "rank 999"
    assert layout.height < 700


def test_the_legend_fits_the_page() -> None:
    every = {name: [1.0] for name in MEMORY}
    legend = MemoryBarsLayout(None, measured_bytes(every)).legend()
    texts = [mark for mark in legend if isinstance(mark, Text)]
    assert [mark.text for mark in texts][-1] == "predicted states"
    assert all(mark.x + text_width(mark.text, 11) < WIDTH for mark in texts)
    assert ">buckets<" not in memory_bars(measured={"parameters": 1, "buckets": 0}).static_svg()


class FakeMemory:
    """The memory of a run with memory=True."""

    def at(self, moment):
        return {"peak": {"parameters": np.array([4, 4]), "other": np.array([1, 2])}}[moment]


class FakeRun:
    memory = FakeMemory()


def test_a_run_or_its_memory_can_be_passed() -> None:
    for given in (FakeRun(), FakeMemory()):
        found = measured_bytes(given)
        assert {name: list(column) for name, column in found.items()} == {
            "parameters": [4, 4],
            "other": [1, 2],
        }
    assert list(measured_bytes({"optimizer": 7})["optimizer"]) == [7]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stage": 4}, "stage=4"),
        ({"precision": "fp8"}, "precision='fp8'"),
        ({"offload": "all"}, "offload='all'"),
        ({"unit": "GBit"}, "unit='GBit'"),
        ({"parameters": 0}, "must be above 0"),
        ({"capacity_bytes": 0}, "capacity_bytes=0"),
        ({"measured": {"weights": 1}}, "'weights' is not one of"),
        ({"measured": {"parameters": [1, 2], "gradients": [1]}}, "for the same ranks"),
    ],
)
def test_invalid_arguments_raise(change, message) -> None:
    with pytest.raises(ValueError, match=message):
        memory_bars(**change)


def test_numpy_numbers_become_plain_numbers_for_the_browser() -> None:
    widget = memory_bars(np.int64(1000), np.int64(4), capacity_bytes=np.float64(1e6))
    json.dumps([widget.settings, widget.scene])


def test_settings_are_checked() -> None:
    widget = memory_bars()
    with pytest.raises(traitlets.TraitError, match="stage=7"):
        widget.settings = widget.settings | {"stage": 7}


def test_ticks_are_round() -> None:
    assert ticks(104e9, 5, decimal=True) == [0, 50e9, 100e9]
    assert ticks(7 * 2**20, 4, decimal=False) == [0, 2**21, 2**22, 3 * 2**21]


def test_outside_a_notebook_it_is_text_and_a_static_picture() -> None:
    data, _ = memory_bars()._repr_mimebundle_()
    assert set(data) == {"text/plain", "text/html", "image/svg+xml"}
    assert "Stage 0: 120 GB" in data["text/plain"]
