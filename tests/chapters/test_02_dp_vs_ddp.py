"""Chapter 02 runs from top to bottom, and its outputs match its text.

Its cells assert bytes, gradients and live bytes themselves; we check what they print and draw.
"""

import re

import pytest
from playwright.sync_api import expect

from tests.chapters.reopened_notebook import try_the_pictures
from tests.chapters.running_chapter import run

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def chapter(tmp_path_factory):
    predictions = {
        "the weights take": "[3 * weight_bytes, weight_bytes, weight_bytes, weight_bytes]",
        "the gradients take": "1.5 * weight_bytes",
        "begin only when the last": "0",
        "With DDP, eight ranks": "amounts[0]",
        "between the replicas": '"stays the same"',
    }
    chapter = run("02_dp_vs_ddp", tmp_path_factory.mktemp("chapter"), predictions=predictions)
    print(f"\nchapter 02: {chapter.seconds:.0f} s (budget: 60 s)")
    return chapter


def test_all_traffic_is_in_the_hubs_row_and_column(chapter):
    picture = chapter.svg_of("run = launch(data_parallel, 1, world_size=4")
    assert "predicted" in picture
    assert picture.count(">1.1 MiB<") == 2 * 3 + 3 + 0  # 6 of the map's cells, 3 ranks' bars
    assert "3.4 MiB" in picture
    answer = chapter.text_of("without inputs and outputs")
    assert "Each 11 % too low: that is weights and gradients, without" in answer


def test_each_kind_of_message_has_its_bytes(chapter):
    assert [tuple(row.values()) for row in chapter.table_of("kinds = (")] == [
        ("inputs", "1,024", "from the hub"),
        ("weights", "1,042,944", "from the hub"),
        ("outputs", "131,072", "to the hub"),
        ("gradients of outputs", "131,072", "from the hub"),
        ("gradients", "1,042,944", "to the hub"),
    ]


def test_the_formula_includes_the_outputs(chapter):
    rows = chapter.table_of("sent, predicted = run.traffic.sent_by_rank")
    shares = [float(row["sent / formula"]) for row in rows]
    assert shares == pytest.approx([1] * 4, abs=0.002)


def test_other_ranks_wait_for_the_hub(chapter):
    assert ">loss<" in chapter.svg_of("run = launch(data_parallel, world_size=4")
    assert chapter.text_of("waited_s(run, rank):.0f").count("for the hub") == 3


def test_with_ddp_every_rank_sends_the_same(chapter):
    picture = chapter.svg_of("run = launch(ddp, 1, world_size=4")
    assert "Bytes sent · step" in picture
    assert "predicted" in picture
    assert "Right, within 2 %." in chapter.text_of('"what the hub sends with DP"')
    printed = chapter.text_of("run = launch(ddp, world_size=4")
    assert "✓ on all four ranks, largest difference from one process" in printed


def test_the_hubs_traffic_grows_with_every_rank_and_the_rings_does_not(chapter):
    printed = chapter.text_of("predicted_total.compare(")
    rows = chapter.table_of("ddp_sent[n].sum()")
    assert [row["ranks N"] for row in rows] == ["2", "3", "4", "8"]
    assert "measured about as much" in printed
    assert "<svg" in chapter.svg_of("DP's hub: (N")


def test_all_buckets_but_the_last_start_before_the_last_gradient(chapter):
    rows = [tuple(row.values()) for row in chapter.table_of('"begun early": "d"')]
    assert rows[0] == ("25", "1", "0", "0%")
    assert rows[2:] == [("1", "4", "3", "94%"), ("0.25", "13", "12", "94%")]
    assert rows[1][:3] == ("None", "2", "1")  # the default: a first bucket of 1 MiB
    answer = chapter.text_of("predicted_late.compare(")
    assert "counted 1; predicted 0" in answer
    assert "that is none: but one bucket needs the last gradient." in answer
    assert "backward" in chapter.svg_of("timeline(runs[1])")
    assert "<svg" in chapter.svg_of("draw_pass(axes, *second_pass")


def test_no_sync_sends_once_if_it_includes_forward(chapter):
    printed = chapter.text_of("every_time, once = (")
    sent = [float(mebibytes) for mebibytes in re.findall(r"measured (\S+) MiB", printed)]
    assert sent == pytest.approx([6, 1.5], abs=0.1)
    assert "despite no_sync: 1.5 MiB" in chapter.text_of("def only_around_backward")


def test_ddp_broadcasts_before_the_first_step(chapter):
    calls = [row["call"] for row in chapter.table_of("run = launch(ddp, 0")]
    assert calls == ["all_gather", "broadcast", "broadcast"]


def test_replicas_keep_their_initial_difference(chapter):
    assert "predicted stays the same. Right." in chapter.text_of("predicted_drift.compare(")
    rows = chapter.table_of("*together[1][step]")
    assert [row["distance, with the broadcast"] for row in rows] == ["0.000"] * 3
    (distance,) = {row["distance, without"] for row in rows}
    assert float(distance) > 1
    for loss in ("loss, with it", "loss, without"):  # both fall: nothing looks wrong
        assert float(rows[-1][loss]) < float(rows[0][loss]) - 1


def test_a_missing_gradient_is_silent_an_error_or_a_hang(chapter):
    assert "all-reduces: 0" in chapter.text_of("train_early_exit, [0, 1], 1")
    assert "Expected to have finished reduction" in chapter.text_of("train_early_exit, [0, 1], 2")
    printed = chapter.text_of("train_early_exit, [1], 1")
    assert printed.startswith("rank 1 finished without entering all_reduce, where rank 0 waits")
    calls = [("all_reduce", "33,280", "float32"), ("all_reduce", "16", "int32")]
    rows = chapter.table_of("def find_unused")
    assert [tuple(row.values()) for row in rows] == calls * 2


def test_ddp_neither_notices_a_by_pass_nor_another_order(chapter):
    rows = chapter.table_of("norms = {}")
    usual, by_passed, other = ([*row.values()][1:] for row in rows)
    assert usual[:2] == usual[2:]
    assert by_passed[:2] != by_passed[2:]
    assert other[:2] == other[:1:-1]
    assert other[:2] != other[2:]


def test_a_rank_has_another_number_in_its_group(chapter):
    rows = [tuple(row.values()) for row in chapter.table_of("def sum_in_pairs")]
    assert rows == [("0", "0", "1"), ("1", "1", "1"), ("2", "0", "5"), ("3", "1", "5")]


def test_a_tied_parameter_is_sent_once_and_a_frozen_one_never(chapter):
    rows = chapter.table_of('for kind in ("tied"')
    trainable = [int(row["trainable parameters"].replace(",", "")) for row in rows]
    assert [row["model"] for row in rows] == ["tied", "untied", "blocks frozen"]
    assert trainable[1] == trainable[0] + 256 * 96
    assert trainable[2] < trainable[0] / 5


def test_ddp_keeps_everything_on_every_rank(chapter):
    rows = chapter.table_of('{"copies of Ψ": ""')
    assert [row.pop("copies of Ψ") for row in rows] == ["N = 1", "N = 2", "N = 4"]
    assert rows[0] == rows[1] == rows[2]
    assert [rows[0][name] for name in ("parameters", "gradients", "optimizer", "buckets")] == [
        *("1.00", "1.00", "2.00", "1.00"),
    ]
    in_views = chapter.table_of("def ddp_in_buckets")
    assert {"as views": "buckets", "copies of Ψ": "0.00"} in in_views


def test_dps_hub_runs_out_of_memory_first(chapter):
    assert "✓ DP's hub uses" in chapter.text_of("DP's hub uses")
    assert "<svg" in chapter.svg_of("live bytes, in copies of Ψ")


@pytest.mark.browser
def test_reopened_pictures_respond_to_keys_and_sliders(chapter, loaded_lab, artifacts):
    seen = try_the_pictures(chapter, loaded_lab, artifacts, also=predictions_are_answered)
    assert seen >= {"timeline", "traffic-map"}


def predictions_are_answered(notebook):
    """Without the kernel: a guess made before the notebook was saved, and one made now."""
    earlier = notebook.cell("predicted_late.compare(").widget("comparison")
    expect(earlier).to_have_attribute("data-outcome", "named")
    answer = notebook.cell("predicted_copies.compare(").widget("comparison")
    expect(answer).to_have_attribute("data-state", "waiting")
    prediction = notebook.cell("predicted_copies = predict(").widget("prediction")
    for field in prediction.get_by_role("textbox").all():
        field.fill("4")
    prediction.get_by_role("button", name="Commit").click()
    answer = notebook.cell("predicted_copies.compare(").widget("comparison")
    expect(answer).to_contain_text("Right, within 2 %.")
