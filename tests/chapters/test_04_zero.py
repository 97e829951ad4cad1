"""Chapter 04 runs from top to bottom, and its outputs match its text."""

import re

import pytest

from tests.chapters.reopened_notebook import try_the_pictures
from tests.chapters.running_chapter import run

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def chapter(tmp_path_factory):
    predictions = {"each rank after backward": "[7, 5.5, 4]"}
    chapter = run("04_zero", tmp_path_factory.mktemp("chapter"), predictions=predictions)
    print(f"\nchapter 04: {chapter.seconds:.0f} s (budget: 60 s)")
    return chapter


def floats(text):
    return [float(number) for number in re.findall(r"\d+\.\d*|\d+", text)]


def test_every_rank_holds_sixteen_bytes_per_parameter(chapter):
    together = {"model state": "together", "bytes per parameter": "16"}
    assert chapter.table_of("state_bytes = {")[-1] == together
    rows = chapter.table_of('{"stage 0, on each rank"')
    assert [row["bytes per parameter"] for row in rows] == ["2.00", "2.00", "12.00"]
    assert "measured 5 billion parameters" in chapter.text_of("predicted_largest.compare(")


def test_model_states_shrink_stage_by_stage(chapter):
    rows = chapter.table_of("def paper_and_measured")
    assert [floats(" ".join(row.values()))[:3] for row in rows] == [
        [0, 16, 16],
        [1, 7, 5.85],  # below the paper's figure: freed gradients
        [2, 5.5, 5.85],
        [3, 4, 4],
    ]
    answer = chapter.text_of("predicted_by_stage.compare(")
    assert "that is the paper's count; at stage 1 this run has freed" in answer.lower()


def test_each_difference_from_the_paper_is_named(chapter):
    printed = chapter.text_of("extras = zero_extras(numels, persistence_threshold=0")
    apart = re.findall(r"\((?:≤ (\S+) % apart; .+|equal)\)", printed)
    assert len(apart) == 4
    assert all(float(percent or 0) < 0.1 for percent in apart)
    names = [row.pop("bytes beyond the paper, rank 2") for row in chapter.table_of("names = list(")]
    assert {"step counters", "padding", "tensors across a boundary", "freed gradients"} <= {*names}


def test_stage_1_holds_whole_gradients_between_micro_batches(chapter):
    stage_1, stage_2 = chapter.table_of("accumulate = {")
    assert [stage_1[f"gradients on rank {rank}"] for rank in range(4)] == ["2.00"] * 4
    sent = "sent by all ranks"
    assert float(stage_1[sent]) < 0.1 < 1 < float(stage_2[sent])


def test_a_tensor_spans_two_ranks_and_a_layer_is_larger_than_a_shard(chapter):
    assert "measured rank 1, rank 2>" in chapter.text_of("holders = layouts")
    # The answer can be worked out from what the cell above it prints.
    printed = chapter.text_of("before = list(numels)").replace(",", "")
    start, end, total = map(int, re.findall(r"\d{3,}", printed))
    assert [4 * start // total, 4 * (end - 1) // total] == [1, 2]
    assert "blocks.0 alone is 1.72 times" in chapter.text_of("largest = max(layers")


def test_the_table_matches_the_papers(chapter):
    rows = chapter.table_of("def gigabytes")
    assert list(map(float, rows[3].values())) == [
        *(64, 31.41, 16.64, 1.88, 536, 284, 32, 4187.5, 2218.75, 250),
    ]
    assert chapter.text_of("published = {").count("✓") == 2


def test_traffic_exceeds_the_papers_for_the_reasons_given(chapter):
    answer = chapter.text_of("def sent_per_rank").split("measured")[1]
    measured = [float(sent) for sent in re.findall(r": (\S+) Ψ", answer)]
    assert measured == pytest.approx([2, 3, 3, 4.19], rel=0.06)
    calls = [row["reduce_scatter_single"] for row in chapter.table_of("def calls_of_step")]
    assert calls[:3] == ["–"] * 3
    assert float(calls[3]) > 0
    to_its_owner = re.search(r"Ψ: measured (\d\.\d+)", chapter.text_of("each_to_its_owner = "))
    assert 2 < float(to_its_owner[1]) < 2.5
    assert "<svg" in chapter.svg_of("axes.bar(stages")


def test_stage_3_with_defaults_holds_more_than_stage_0(chapter):
    assert "measured 2.5 bytes" in chapter.text_of("default_config = ")
    printed = chapter.text_of("persistent = zero_extras")
    assert "measured 2.5, predicted 2.5" in printed
    assert "✓ buckets on each rank: measured 4 × 1,000,000,000 bytes" in printed


def test_kept_parameters_take_memory_and_save_a_gather(chapter):
    rows = chapter.table_of("kept = launch")
    (freed_bytes, freed_sent), (kept_bytes, kept_sent) = (
        floats(" ".join(row.values())) for row in rows
    )
    assert freed_bytes < 1.5  # 0.5, and a block, 0.86, that gloo's threads may still hold
    assert kept_bytes == 2.5
    assert kept_sent < freed_sent - 1


def test_peaks_are_in_the_step_and_fall_with_sharding(chapter):
    rows = [list(row.values()) for row in chapter.table_of("kinds = [kind for kind")]
    assert {row[1] for row in rows} == {"step"}
    assert rows[0][3:6] == ["2.00", "6.00", "12.00"]
    both = ["step", "8.00", "2.00", "1.00", "3.00"]
    assert [row[:6] for row in rows[1:3]] == [["1", *both], ["2", *both]]
    assert chapter.text_of("in_step = ").count("measured 8.004, predicted 8 (") == 2


def test_bytes_per_parameter_by_convention(chapter):
    rows = chapter.table_of("def bytes_at_stage_2")
    assert [float(row["bytes per parameter"]) for row in rows] == [16, 3.75, 20, 4.25]


def test_more_devices_fit_a_larger_model_only_at_stage_3(chapter):
    rows = chapter.table_of("most = [memory.largest_model")
    most = [float(row["billion parameters"]) for row in rows]
    assert most == sorted(most)
    assert most[3] / most[0] == pytest.approx(8, rel=0.05)


def test_pictures_are_drawn(chapter):
    for cell in ("memory_timeline({", "memory_bars(parameters", "shard_map(layouts, predicted"):
        assert "<svg" in chapter.svg_of(cell)


def test_fsdp2_holds_a_shard(chapter):
    assert "[0.5 0.5]" in chapter.text_of("fsdp2 = launch")


@pytest.mark.browser
def test_reopened_pictures_respond_to_keys_and_sliders(chapter, loaded_lab, artifacts):
    kinds = try_the_pictures(chapter, loaded_lab, artifacts, with_axe=True)
    assert kinds >= {"memory-bars", "shard-map"}
