from itertools import combinations
from xml.etree import ElementTree

import pytest

from shardlab.widgets import ring_player
from shardlab.widgets.ring_layouts import HEIGHT, WIDTH
from tests.shardlab.widgets.synthetic import collective, dense, hub, make_run, ring_all_reduce


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 8])
def test_cards_do_not_overlap_and_stay_inside(n: int) -> None:
    layout = ring_player(ring_all_reduce(n)).scene["layout"]
    assert layout["kind"] == "cards"
    width, height = layout["column"] * n + 30, layout["row"] * n + 32  # with their frames
    corners = [(x - 22, y - 24) for x, y in layout["corners"]]
    for x, y in corners:
        assert 0 <= x <= WIDTH - width
        assert 0 <= y <= HEIGHT - height
    for (x1, y1), (x2, y2) in combinations(corners, 2):
        assert abs(x1 - x2) >= width or abs(y1 - y2) >= height


def test_many_ranks_are_drawn_as_a_wheel() -> None:
    scene = ring_player(ring_all_reduce(64, 10)).scene
    assert scene["layout"]["kind"] == "wheel"
    assert (scene["chunks"], scene["steps"], len(scene["messages"])) == (64, 126, 8064)


def test_messages_record_whose_data_they_carry() -> None:
    first, *_ = ring_player(ring_all_reduce(4)).scene["messages"]
    assert (first["from"], first["to"], first["chunk"], first["target_chunk"]) == (0, 1, 0, 0)
    assert (int(first["carried"], 16), int(first["held"], 16)) == (0b0001, 0b0011)


def test_messages_of_copied_chunks_show_only_bytes() -> None:
    scene = ring_player(ring_all_reduce(4, clones=True)).scene
    assert scene["layout"]["kind"] == "nodes"
    assert "does not show which part" in scene["notes"][0]


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (make_run(2, [collective("all_reduce", 0, 2, start_s=0, end_s=1)]), "only collectives"),
        (dense(4), "no calls"),
    ],
)
def test_a_run_without_messages_explains_what_can_be_drawn(run, reason: str) -> None:
    widget = ring_player(run)
    (note,) = widget.scene["notes"]
    assert reason in note
    assert "send and recv" in note
    assert reason in widget.static_svg()


def test_pairs_that_send_both_ways_have_two_paths() -> None:
    links = ring_player(hub(4)).scene["layout"]["links"]
    assert len(links) == 6
    assert links["0>2"] != links["2>0"]


@pytest.mark.parametrize(
    "run", [ring_all_reduce(2), ring_all_reduce(4), ring_all_reduce(12, 8), hub(5), dense(3)]
)
def test_the_static_picture_is_well_formed(run) -> None:
    ElementTree.fromstring(ring_player(run).static_svg())
