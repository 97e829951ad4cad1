"""The interface of Run and Traffic."""

from __future__ import annotations

import numpy as np
import pytest

from shardlab.run import Call, MeasuredBlock, Run, Traffic


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


def test_an_unknown_label_raises_and_the_message_lists_the_known_ones(traffic: Traffic) -> None:
    with pytest.raises(KeyError, match="'step'; measured: 'forward', 'backward'"):
        traffic["step"]
    with pytest.raises(KeyError, match="measured: none"):
        Traffic(np.zeros((2, 2), dtype=np.int64), "by hand")["step"]


def test_the_repr_of_a_run_is_one_line(traffic: Traffic) -> None:
    run = Run(2, "cpu", "requested", [1, 2], ["", ""], ["", ""], traffic, [], 0.1, 0.25)
    assert repr(run) == "<Run: 2 ranks on cpu (requested), 0 calls, 28 bytes sent, 0.25 s>"


def test_calls_in_a_block_are_those_that_began_there(traffic: Traffic) -> None:
    calls = [call(rank, at) for rank in (0, 1) for at in (0.5, 1.5, 2.5)]
    run = Run(2, "cpu", "requested", [1, 2], ["", ""], ["", ""], traffic, calls, 0.1, 0.25)
    assert run.calls_in("forward") == [calls[0], calls[2]]  # of rank 0, in two blocks
    assert run.calls_in("forward", 1) == [calls[3]]
    assert run.calls_in("backward", 1) == []
    with pytest.raises(KeyError, match="measured: 'forward', 'backward'"):
        run.calls_in("step")


def call(rank: int, start_s: float) -> Call:
    """A call that ends in the next block."""
    where, tensor = ("cell 1, line 1", 0), ("float32", (1,), 0, 1)
    return Call(rank, "all_reduce", 4, None, (0, 1), start_s, start_s + 1, *where, *tensor)
