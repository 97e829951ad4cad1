"""Chapter 03 runs from top to bottom, and what its prose says is what its cells show.

Seconds are printed, never asserted: they depend on the machine and its load.
"""

import re

import pytest

from tests.chapters.running_chapter import run

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def chapter(tmp_path_factory):
    chapter = run("03_ring_all_reduce", tmp_path_factory.mktemp("chapter"))
    print(f"\nchapter 03: {chapter.seconds:.0f} s (budget: 60 s)")
    return chapter


def numbers_by_rank(printed):
    return [
        [int(number) for number in row.split(", ")]
        for row in re.findall(r"^rank \d \[(.*)\]$", printed, re.MULTILINE)
    ]


def test_the_hub_computes_the_sum_and_carries_all_traffic(chapter):
    cell = "run = launch(hub_all_reduce"
    assert chapter.said(cell).startswith("sum on each rank: [6.0, 6.0, 6.0, 6.0]")
    assert "12.0 MiB" in chapter.drew(cell)
    assert "predicted" not in chapter.drew(cell)


def test_after_one_step_one_chunk_contains_two_ranks_numbers(chapter):
    rows = numbers_by_rank(chapter.said("launch(reduce_scatter_of_four, 1,"))
    for rank, row in enumerate(rows):
        changed = {number for number in row if number != 10**rank}
        assert changed == {10**rank + 10 ** ((rank - 1) % 4)}
        assert row.count(10**rank) == 6


def test_after_three_steps_rank_r_has_the_complete_chunk_r(chapter):
    rows = numbers_by_rank(chapter.said("launch(reduce_scatter_of_four, inputs"))
    assert len(rows) == 4
    for rank, row in enumerate(rows):
        assert [i for i, number in enumerate(row) if number == 1111] == [2 * rank, 2 * rank + 1]
    assert chapter.said("complete_on =").strip().endswith("complete on rank: [2]")


def test_after_the_second_round_all_ranks_have_all_chunks(chapter):
    assert chapter.said("launch(all_reduce_of_four").count("1111") == 4 * 8
    assert "24 messages, 384 B, in 6 steps" in chapter.drew("ring_player(run)")


def test_the_ring_sends_what_the_formula_says(chapter):
    printed = chapter.said("ring_runs = ")
    shares = [float(share) for share in re.findall(r"predicted, (\d\.\d+) times that", printed)]
    assert shares == pytest.approx([1, 1, 1], abs=0.01)
    assert re.findall(r"N = (\d)", printed) == ["2", "4", "8"]


def test_the_hub_sends_more_with_every_rank(chapter):
    printed = chapter.said("hub_runs = ")
    assert re.findall(r"rank 0 sends (\S+ MiB), the others (\S+ MiB)", printed) == [
        ("4.0 MiB", "4.0 MiB"),
        ("12.0 MiB", "4.0 MiB"),
        ("28.0 MiB", "4.0 MiB"),
    ]
    assert "<svg" in chapter.drew("axes.annotate")


def test_gloos_reduce_scatter_sends_twice_its_ideal(chapter):
    printed = chapter.said("ideal = ")
    times = {name: float(over) for name, over in re.findall(r"(\w+): (\d\.\d+) times", printed)}
    assert times["own_reduce_scatter"] == pytest.approx(1, abs=0.01)
    assert times["library_reduce_scatter"] == pytest.approx(2, abs=0.02)
    assert "predicted" in chapter.drew("traffic_map(run, predicted=ideal)")


def test_sending_first_hangs_at_any_size_and_the_cycle_is_named(chapter):
    printed = chapter.said("for elements in (1, length)")
    for elements in ("1", "1,048,576"):
        assert f"length {elements}: deadlock: ranks 0 → 1 → 2 → 3 → 0 all wait in send" in printed
    assert chapter.said("print(hang.detail)").count("dist.send(outgoing, right)") == 4
    assert "never ended" in chapter.drew("timeline(hang)")


@pytest.mark.parametrize("way_out", ["start_sending_then_receive", "take_turns"])
def test_both_ways_out_finish(chapter, way_out):
    picture = chapter.drew(f"launch({way_out}")
    assert "8 calls on 4 ranks" in picture
    assert "never ended" not in picture


def test_the_model_is_fitted_and_tested_on_unseen_measurements(chapter):
    assert re.search(r"latency α = \d+ µs, bandwidth B = \S+ GB/s", chapter.said("AlphaBeta.fit"))
    assert chapter.said("predicted_s = {").count("measured / predicted") == 3
    assert "<svg" in chapter.drew("loglog")


def test_ddp_sums_all_gradients_in_fewer_calls(chapter):
    printed = chapter.said("launch(two_steps")
    tensors, total = re.match(r"(\d+) gradients of (\S+) MiB", printed).groups()
    buckets = [float(size) for size in re.findall(r"^  (\S+) MiB at", printed, re.MULTILINE)]
    assert buckets[0] == float(total)  # the first step: one bucket
    assert sum(buckets[1:]) == pytest.approx(float(total), abs=0.1)
    assert 1 < len(buckets[1:]) < int(tensors)


def test_a_guess_is_shown_next_to_the_measurement(tmp_path):
    guesses = {
        "as a list": "[3 * tensor_bytes, tensor_bytes, tensor_bytes, tensor_bytes]",
        "the rank, 0 to 3": "2",
        "each rank sends": "6 * tensor_bytes // 4",
    }
    guessed = run("03_ring_all_reduce", tmp_path, predictions=guesses, until="world_sizes = ")
    assert "predicted" in guessed.drew("run = launch(hub_all_reduce")
    assert "your prediction: 2" in guessed.said("complete_on =")
    assert "predicted" in guessed.drew("run = launch(all_reduce, length, world_size=4")
