from xml.etree import ElementTree

import numpy as np
import pytest
import traitlets

from shardlab.display.palette import MEASURED, PREDICTED, luminance
from shardlab.widgets import traffic_map
from shardlab.widgets.traffic_map import DARK_CELL, byte_ticks, cell_ink
from tests.shardlab.widgets.synthetic import dense, on_nodes, ring_all_reduce

MIB = 2**20


def rects(widget, fill, block=""):
    view = next(view for view in widget.scene["views"] if view["block"] == block)
    return [m for m in view["marks"] if m["kind"] == "rect" and m.get("fill") == fill]


def test_cells_are_where_rows_send_to_columns() -> None:
    widget = traffic_map(ring_all_reduce(4))
    scene = widget.scene
    left, top, cell = scene["heat_x"][0], scene["top"], scene["cell"]
    in_map = [
        m for m in rects(widget, MEASURED) if m["x"] < left + 4 * cell and m["y"] < top + 4 * cell
    ]
    places = {(int((m["y"] - top) // cell), int((m["x"] - left) // cell)) for m in in_map}
    assert places == {(0, 1), (1, 2), (2, 3), (3, 0)}
    assert scene["views"][0]["sent"][0] == [0, 6 * MIB, 0, 0]


def test_opacity_increases_with_bytes() -> None:
    marks = rects(traffic_map(dense(4)), MEASURED)
    cells = [m for m in marks if m["width"] == m["height"] and m["width"] > 20]
    opacities = [m.get("opacity", 1.0) for m in cells]
    assert opacities == sorted(opacities)
    assert opacities[-1] == 1.0


def test_each_block_has_its_own_view() -> None:
    widget = traffic_map(ring_all_reduce(4), block="all-gather")
    blocks = {view["block"]: view["total_bytes"] for view in widget.scene["views"]}
    assert blocks == {"": 24 * MIB, "reduce-scatter": 12 * MIB, "all-gather": 12 * MIB}
    assert widget.block == "all-gather"
    assert "12.0 MiB" in widget.summary()
    widget.block = ""
    assert "24.0 MiB" in widget.summary()
    with pytest.raises(traitlets.TraitError, match="must be one of"):
        widget.block = "nowhere"
    with pytest.raises(KeyError, match="no measured block is labeled 'nowhere'"):
        traffic_map(ring_all_reduce(4), block="nowhere")


@pytest.mark.parametrize("predicted", [6 * MIB, [6 * MIB] * 4])
def test_a_prediction_is_next_to_each_ranks_bar(predicted) -> None:
    widget = traffic_map(ring_all_reduce(4), predicted)
    bars = [m for m in rects(widget, PREDICTED) if m["width"] > 20]
    assert len(bars) == 4
    assert len({m["width"] for m in bars}) == 1
    assert widget.scene["views"][0]["predicted"] == [6 * MIB] * 4


def test_a_predicted_matrix_is_a_second_map() -> None:
    widget = traffic_map(ring_all_reduce(4), np.roll(np.eye(4), 1, axis=1) * 6 * MIB)
    assert len(widget.scene["heat_x"]) == 2
    assert len([m for m in rects(widget, PREDICTED) if m["width"] == m["height"] > 20]) == 4


def test_a_prediction_belongs_to_one_block() -> None:
    widget = traffic_map(ring_all_reduce(4), 3 * MIB, block="all-gather")
    predicted = {view["block"]: view["predicted"] is not None for view in widget.scene["views"]}
    assert predicted == {"": False, "reduce-scatter": False, "all-gather": True}


@pytest.mark.parametrize(
    ("predicted", "message"),
    [([1, 2, 3], "shape"), (-1, "not negative"), (float("nan"), "finite")],
)
def test_a_prediction_of_the_wrong_form_raises(predicted, message) -> None:
    with pytest.raises(ValueError, match=message):
        traffic_map(ring_all_reduce(4), predicted)


def test_64_ranks_stay_within_the_page() -> None:
    scene = traffic_map(dense(64)).scene
    cells = [m for m in scene["views"][0]["marks"] if m["kind"] == "rect"]
    assert len(cells) > 64 * 63
    assert scene["height"] < 600


def test_an_empty_run_can_be_drawn() -> None:
    widget = traffic_map(dense(1))
    ElementTree.fromstring(widget.static_svg())
    assert widget.summary() == "whole run: 0 B by 1 rank"


def test_ticks_are_round_and_few() -> None:
    assert byte_ticks(6 * MIB, 4) == [0, 2 * MIB, 4 * MIB, 6 * MIB]
    assert byte_ticks(0, 4) == [0]


def test_the_static_picture_escapes_labels() -> None:
    run = ring_all_reduce(4)
    label = "<b>&\"'"
    blocks = tuple(
        type(block)(label, block.rank, block.start_s, block.end_s, block.sent_bytes)
        for block in run.traffic.blocks
    )
    run.traffic = type(run.traffic)(run.traffic.sent_bytes, "<i>source</i>", blocks)
    svg = traffic_map(run, block=label).static_svg()
    ElementTree.fromstring(svg)
    assert "<b>" not in svg
    assert "<i>" not in svg


def test_nodes_have_names_and_rules_between_them() -> None:
    widget = traffic_map(on_nodes(ring_all_reduce(4), 2))
    scene = widget.scene
    marks = scene["views"][0]["marks"]
    names = [mark["text"] for mark in marks if mark["kind"] == "text"]
    assert (names.count("node 0"), names.count("node 1")) == (2, 2)
    border = scene["top"] + 2 * scene["cell"]
    assert [m for m in marks if m["kind"] == "path" and m["d"].count(f" {border:g}") == 2]
    # Ranks 1 and 3 each send their 6 MiB to the other node.
    assert scene["views"][0]["between"] == ", 12.0 MiB of it between nodes"
    assert "rank 2 on node 1 sent 6.0 MiB" in widget.alternative()
    assert "node" not in traffic_map(on_nodes(ring_all_reduce(4), 1)).static_svg()


@pytest.mark.parametrize("color", [MEASURED, PREDICTED])
def test_numbers_in_cells_are_legible_in_both_themes(color: str) -> None:
    channels = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    for text, empty in (("#000000", 0xF0), ("#ffffff", DARK_CELL)):  # the light theme, the dark one
        for percent in range(10, 101, 5):
            mixed = [round((percent * each + (100 - percent) * empty) / 100) for each in channels]
            cell = luminance("#" + "".join(f"{each:02x}" for each in mixed))
            ink = cell_ink(color, percent / 100).replace("text", text)
            dark, light = sorted((cell, luminance(ink)))
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (empty, percent)
