"""The traffic map's second mode, without a browser."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
import traitlets

from shardlab.display.palette import MEASURED
from shardlab.widgets import traffic_map
from shardlab.widgets.traffic_links import TrafficLinks
from shardlab.widgets.units import format_bytes
from tests.shardlab.widgets.synthetic import (
    STEP_S,
    dense,
    on_nodes,
    p2p,
    ring_all_reduce,
    with_links,
)

MIB = 2**20
SPEED = 12e9


def links_of(nodes: int = 2, bits_per_s: float | None = SPEED) -> TrafficLinks:
    found = traffic_map(with_links(ring_all_reduce(4), nodes, bits_per_s))._links
    assert found is not None
    return found


def steps(links: TrafficLinks, node: int) -> list[list[tuple[float, float]]]:
    """What a node sent and received, as (width, height) of each step of its picture."""
    paths = [mark for mark in links._common if getattr(mark, "fill", "") == MEASURED]
    found = []
    for path in [mark for mark in paths if hasattr(mark, "d")][2 * node : 2 * node + 2]:
        start, middle = map(float, re.match(r"M([\d.]+) ([\d.]+)", path.d).groups())
        sizes = []
        for y, x in re.findall(r"V([\d.]+)H([\d.]+)", path.d):
            sizes.append((float(x) - start, abs(float(y) - middle)))
            start = float(x)
        found.append(sizes)
    return found


def test_the_mode_is_offered_where_links_were_read() -> None:
    assert traffic_map(ring_all_reduce(4)).scene["links"] is None
    on_one_node = traffic_map(with_links(ring_all_reduce(4), 1), mode="links")
    unread = traffic_map(on_nodes(ring_all_reduce(4), 2), mode="links")
    assert [widget.mode for widget in (on_one_node, unread)] == ["ranks", "ranks"]
    widget = traffic_map(with_links(ring_all_reduce(4), 2), mode="links")
    assert widget.mode == "links"
    assert "Links of the nodes" in widget.static_svg()
    widget.mode = "ranks"
    assert "row sends to column" in widget.static_svg()
    with pytest.raises(traitlets.TraitError, match="must be one of"):
        unread.mode = "links"
    with pytest.raises(ValueError, match='"ranks" or "links"'):
        traffic_map(dense(4), mode="nodes")


def test_the_area_is_the_bytes_of_the_link() -> None:
    links = links_of()
    run = with_links(ring_all_reduce(4), 2)
    between = run.traffic.between_nodes
    (top, bottom), width = links._plot(0), links.x(links.end_s) - links.x(0)
    full = (bottom - top) / 2 / 1.1
    for node in range(2):
        for way, sizes in zip((between[node], between[:, node]), steps(links, node), strict=True):
            share = sum(wide * high for wide, high in sizes) / width / full
            assert share * SPEED / 8 * links.end_s == pytest.approx(way[1 - node], rel=0.03)


def test_a_link_that_is_full_reaches_100_percent_and_a_burst_at_most_110() -> None:
    run = with_links(ring_all_reduce(4), 2)
    links = run.traffic.links
    assert links is not None
    rate = links.sent_bits_per_s.max()
    top, bottom = links_of()._plot(0)
    for speed, height in ((rate, 1 / 1.1), (rate / 3, 1.0)):
        faster = replace(run, traffic=replace(run.traffic, links=replace(links, bits_per_s=speed)))
        found = traffic_map(faster)._links
        assert found is not None
        highest = max(high for _, high in steps(found, 0)[0])
        assert highest == pytest.approx(height * (bottom - top) / 2, abs=0.2)


def test_nodes_have_their_ranks_and_bytes_of_the_shown_block() -> None:
    widget = traffic_map(with_links(ring_all_reduce(4), 2), block="all-gather", mode="links")
    svg = widget.static_svg()
    ElementTree.fromstring(svg)
    texts = re.findall(r">([^<>]+)</text>", svg)
    assert [text for text in texts if text.isdigit() and text != "0"] == ["1", "2", "3"]
    assert texts.count("sent 3.0 MiB, received 3.0 MiB, 12 Gbit/s") == 2
    assert "read about every 192 µs" in widget.scene["links"]["small"]  # 35 in 5.7 + 1 ms
    assert "Links: their own counters" in svg
    assert {"node 0", "node 1", "switch", "100 %", "reduce-scatter", "all-gather"} <= {*texts}
    widget.block = ""
    assert "sent 6.0 MiB, received 6.0 MiB, 12 Gbit/s" in widget.static_svg()
    assert "node 1 sent 6.0 MiB and received 6.0 MiB, on average" in widget.alternative()


def test_averages_are_of_the_time_in_a_block() -> None:
    """All bytes pass in the first four fifths."""
    links = links_of()
    whole_s, sent_bits = links.end_s, 8 * 1.01 * 6 * MIB
    for block, start_s, end_s in (
        ("", 0, whole_s),
        ("reduce-scatter", 0, 3 * STEP_S),
        ("all-gather", 3 * STEP_S, 6 * STEP_S),
    ):
        before, after = (min(at / (0.8 * whole_s), 1) for at in (start_s, end_s))
        expected = sent_bits * (after - before) / (end_s - start_s) / SPEED
        sent, received = links._shares(links.views[block])
        assert [*sent, *received] == pytest.approx([expected] * 4, rel=0.02)


def test_a_block_that_ranks_enter_again_has_several_spans() -> None:
    run = ring_all_reduce(4)
    blocks = tuple(replace(block, label="half") for block in run.traffic.blocks)
    run = replace(run, traffic=replace(run.traffic, blocks=blocks))
    found = traffic_map(with_links(run, 2))._links
    assert found is not None
    assert np.ravel(found.views["half"].spans) == pytest.approx(STEP_S * np.array([0, 3, 3, 6]))


def test_times_begin_with_the_first_call() -> None:
    calls = [p2p(op, r, 1 - r, 8, start_s=5.0, end_s=5.1) for r, op in ((0, "send"), (1, "recv"))]
    run = replace(ring_all_reduce(2), calls=calls)
    run = replace(run, traffic=replace(run.traffic, blocks=()))
    scene = traffic_map(with_links(run, 2)).scene["links"]
    assert scene["time_s"][0] == 0
    assert scene["time_s"][-1] == pytest.approx(0.1)


def test_links_without_a_speed_have_rates() -> None:
    widget = traffic_map(with_links(ring_all_reduce(4), 2, None), mode="links")
    svg = widget.static_svg()
    assert "%" not in re.sub("max-width:100%", "", svg)
    assert "Gbit/s" in svg
    assert widget.alternative().endswith("node 1 sent 6.0 MiB and received 6.0 MiB")


def test_many_nodes_and_ranks_can_be_drawn() -> None:
    run = with_links(ring_all_reduce(64, 1000), 8)
    widget = traffic_map(run, mode="links")
    svg = widget.static_svg()
    ElementTree.fromstring(svg)
    assert "ranks 8 to 15" in svg
    assert format_bytes(run.traffic.between_nodes[0, 1]) in svg


def test_nodes_without_a_rank_of_this_function_are_left_out() -> None:
    run = with_links(ring_all_reduce(4), 4)
    first_two = replace(run.traffic, nodes=(0, 0, 1, 1))
    svg = traffic_map(replace(run, traffic=first_two), mode="links").static_svg()
    assert "node 1<" in svg
    assert "node 2<" not in svg
