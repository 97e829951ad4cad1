"""State and geometry of the shard map, without a browser."""

from itertools import pairwise
from xml.etree import ElementTree

import pytest
import traitlets

from shardlab import models, shards
from shardlab.shards import BUFFERS
from shardlab.widgets import shard_map
from shardlab.widgets.shard_map import (
    LEFT,
    RIGHT,
    Geometry,
    color_of,
    fitting_name,
    name_in_layer,
    part_of,
)

SMALL = {"w": 8, "b": 3, "v": 8}


def test_rows_are_ranks_and_spans_are_what_they_hold() -> None:
    layout = shards.flat(SMALL, 4, stage=1)
    geometry = Geometry(layout, 104)
    assert geometry.ranks_per_row == 1
    assert geometry.all_spans("optimizer") == [
        [(0, 5, 0)],
        [(5, 8, 0), (8, 10, 1)],
        [(10, 11, 1), (11, 15, 2)],
        [(15, 19, 2), (19, 20, -1)],
    ]
    assert geometry.all_spans("gradients") == [[(0, 8, 0), (8, 11, 1), (11, 19, 2)]] * 4
    assert geometry.x(0) == LEFT
    assert geometry.x(20) == RIGHT


@pytest.mark.parametrize("stage", [2, 3])
def test_1024_ranks_are_grouped_and_a_row_shows_what_any_of_its_ranks_holds(stage: int) -> None:
    layout = shards.flat(models.gpt("0.1M"), 1024, stage=stage)
    geometry = Geometry(layout, 156)
    assert geometry.row >= 3
    assert geometry.rows * geometry.ranks_per_row >= 1024
    for buffer in BUFFERS:
        rows = geometry.all_spans(buffer)
        shown = [sum(stop - start for start, stop, _ in spans) for spans in rows]
        held = [0.0] * geometry.rows
        for part in layout.segments[buffer]:
            one_row = [part.rank // geometry.ranks_per_row]
            for row in range(geometry.rows) if part.rank < 0 else one_row:
                held[row] += part.numel
        assert shown == held
        assert all(a[1] <= b[0] for spans in rows for a, b in pairwise(spans))


def test_a_piece_thinner_than_a_pixel_is_still_drawn() -> None:
    geometry = Geometry(shards.flat({"w": 10**6, "b": 1, "v": 10**6}, 2, stage=1), 104)
    x0, x1 = geometry.box(10**6, 10**6 + 1)
    assert x1 - x0 == 1
    assert x0 <= geometry.x(10**6) < x1
    assert geometry.box(2 * 10**6 + 1, 2 * 10**6 + 2)[1] <= RIGHT


def test_the_picture_stays_small() -> None:
    for stage in (1, 3):
        widget = shard_map(models.gpt("0.3M"), world_size=1024, stage=stage)
        svg = widget.static_svg()
        ElementTree.fromstring(svg)
        assert len(svg) < 300_000
        assert widget.scene["height"] < 700
        assert widget.scene["views"][0]["segments"] is None  # the browser computes them


def test_settings_change_the_layout() -> None:
    widget = shard_map(shards.flat(SMALL, 4, stage=1))
    assert widget.layout_shown.stage == 1
    widget.settings = widget.settings | {"stage": 3, "worldSize": 2}
    assert widget.layout_shown == shards.flat(SMALL, 2, stage=3)
    assert "parameters 20 B on each rank" in widget.summary()
    with pytest.raises(traitlets.TraitError, match="stage=5"):
        widget.settings = widget.settings | {"stage": 5}
    with pytest.raises(traitlets.TraitError, match="nowhere"):
        widget.settings = widget.settings | {"view": "nowhere"}


def reported(rank: int) -> dict:
    held = {
        "parameters": [(0, 4, 0, 0, 16)],
        "gradients": [],
        "optimizer": [(2 * rank, 2, 0, 2 * rank, 16)],
    }
    report = {"rank": rank, "world_size": 2, "stage": 1, "source": "by hand", "length": 4}
    return report | {"tensors": [["w", 4]], "held": held}


def test_layouts_of_a_run_are_drawn_unchanged() -> None:
    outputs = [reported(0), reported(1)]
    widget = shard_map(outputs)
    assert widget.layout_shown == shards.gather(outputs)
    assert "gradients none" in widget.summary()
    both = shard_map({"live": outputs, "formula": shards.flat(SMALL, 4)})
    assert [view["title"] for view in both.scene["views"]] == ["live", "formula"]
    both.settings = {"view": "formula", "stage": 0, "worldSize": 4}
    assert both.layout_shown.world_size == 4
    assert "<svg" in both.static_svg()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (5, TypeError, "int is not a layout"),
        ({}, ValueError, "no layout"),
        (SMALL, TypeError, "stage="),
    ],
)
def test_anything_but_a_layout_raises(given, error, message) -> None:
    with pytest.raises(error, match=message):
        shard_map(given)


def test_names_are_shortened_from_the_left() -> None:
    assert fitting_name("blocks.0.mlp.up.weight", 1000) == "blocks.0.mlp.up"
    assert fitting_name("blocks.0.mlp.up.weight", 45) == "mlp.up"
    assert fitting_name("blocks.0.mlp.up.bias", 30) == ""
    assert part_of("blocks.3.mlp.up.weight") == "blocks.3"
    assert part_of("token.weight") == "token"
    assert name_in_layer("blocks.3.mlp.up.weight") == "mlp.up.weight"
    assert name_in_layer("norm.bias") == "norm.bias"
    assert name_in_layer("0.weight") == "weight"


def test_neighbors_differ_in_color() -> None:
    assert all(color_of(index) != color_of(index + 1) for index in range(20))


def test_outside_a_notebook_it_is_text_and_a_static_picture() -> None:
    data, _ = shard_map(SMALL, world_size=4, stage=2)._repr_mimebundle_()
    assert set(data) == {"text/plain", "text/html", "image/svg+xml"}
    assert "formula, stage 2" in data["text/plain"]
