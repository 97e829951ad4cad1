"""Sizes and intervals of checkpoints match published numbers and a simple search."""

import math

import pytest

from shardlab.estimate import checkpoint


def test_the_checkpoint_of_bloom():
    """BigScience's page on its 176B model: the bf16 weights "are 329GB, the full checkpoint with
    optimizer states is 2.3TB" (in units of 1024, as the 329 shows)."""
    parameters = 176_247e6  # arXiv 2211.05100, table 3
    assert 2 * parameters / 2**30 == pytest.approx(329, rel=0.005)
    assert checkpoint.checkpoint_bytes(parameters) / 2**30 == pytest.approx(2300, rel=0.005)


def test_rank_0_holds_the_whole_state_in_addition_to_its_shard():
    assert checkpoint.held_bytes(80, 4, sharded=True) == [20, 20, 20, 20]
    assert checkpoint.held_bytes(80, 4, sharded=False) == [100, 20, 20, 20]
    assert checkpoint.gathered_bytes(80, 4) == 60
    with pytest.raises(ValueError, match="world_size"):
        checkpoint.held_bytes(80, 0, sharded=True)


def test_writers_add_up_until_the_storage_is_saturated():
    speeds = {"rank_bytes_per_s": 2e9, "storage_bytes_per_s": 20e9}
    assert checkpoint.save_s(980e9, 1024, **speeds) == 49
    assert checkpoint.save_s(980e9, 1024, sharded=False, **speeds) == 490
    assert checkpoint.save_s(980e9, 4, **speeds) == 980 / 8


def test_no_interval_loses_less_than_youngs():
    save_s, mtbf_s = 60.0, 3 * 3600.0
    best = checkpoint.best_interval_s(save_s, mtbf_s)
    least = checkpoint.overhead_fraction(best, save_s, mtbf_s)
    for factor in (0.5, 0.9, 1.1, 2):
        assert checkpoint.overhead_fraction(factor * best, save_s, mtbf_s) > least
    assert least == pytest.approx(math.sqrt(2 * save_s / mtbf_s))
    with pytest.raises(ValueError, match="interval_s"):
        checkpoint.overhead_fraction(0, save_s, mtbf_s)


def test_the_numbers_in_the_labs_last_question():
    mtbf_s = 5 * 3600
    for save_s, interval_s, lost in ((49, 1328, 0.074), (490, 4200, 0.233)):
        best = checkpoint.best_interval_s(save_s, mtbf_s)
        assert best == pytest.approx(interval_s, rel=0.01)
        assert checkpoint.overhead_fraction(best, save_s, mtbf_s) == pytest.approx(lost, abs=0.001)
