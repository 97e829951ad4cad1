"""The interface of Run and Traffic."""

from __future__ import annotations

import numpy as np
import pytest

from shardlab.run import MeasuredBlock, Run, Traffic


@pytest.fixture
def traffic() -> Traffic:
    blocks = (
        MeasuredBlock("forward", 0, 0.0, 1.0, (0, 10)),
        MeasuredBlock("backward", 0, 1.0, 2.0, (0, 5)),
        MeasuredBlock("forward", 1, 0.0, 1.0, (7, 0)),
        MeasuredBlock("forward", 0, 2.0, 3.0, (0, 1)),
    )
    return Traffic(np.array([[0, 20], [8, 0]]), "by hand", blocks)


def test_rows_send_to_columns(traffic: Traffic) -> None:
    assert traffic.sent_by_rank.tolist() == [20, 8]
    assert traffic.received_by_rank.tolist() == [8, 20]
    assert traffic.received_bytes.tolist() == [[0, 8], [20, 0]]


def test_a_label_sums_over_its_blocks(traffic: Traffic) -> None:
    assert traffic["forward"].sent_bytes.tolist() == [[0, 11], [7, 0]]
    assert traffic["backward"].sent_bytes.tolist() == [[0, 5], [0, 0]]
    assert traffic["forward"].source == "by hand"


def test_traffic_maps_labels_to_traffic_in_order_of_appearance(traffic: Traffic) -> None:
    assert list(traffic) == ["forward", "backward"]
    assert len(traffic) == 2
    assert "backward" in traffic
    assert "step" not in traffic
    assert traffic.get("step") is None


def test_an_unknown_label_is_refused_with_the_known_ones(traffic: Traffic) -> None:
    with pytest.raises(KeyError, match="'step'; measured: 'forward', 'backward'"):
        traffic["step"]
    with pytest.raises(KeyError, match="measured: none"):
        Traffic(np.zeros((2, 2), dtype=np.int64), "by hand")["step"]


def test_a_run_is_shown_in_one_line(traffic: Traffic) -> None:
    run = Run(2, "cpu", "requested", [1, 2], ["", ""], ["", ""], traffic, [], 0.1, 0.25)
    assert repr(run) == "<Run: 2 ranks on cpu (requested), 0 calls, 28 bytes sent, 0.25 s>"
