"""Chapter 02 runs from top to bottom, and its cells show what its prose says.

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
        "All-reduces in": "tensors",
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
    assert "Each 11 % too little: that is weights and gradients, without" in answer


def test_each_kind_of_message_has_its_bytes(chapter):
    rows = re.findall(r"([a-z ]+): +([\d,]+) bytes (\w+) the hub", chapter.text_of("kinds = ("))
    assert [(kind.strip(), size, direction) for kind, size, direction in rows] == [
        ("inputs", "1,024", "from"),
        ("weights", "1,042,944", "from"),
        ("outputs", "131,072", "to"),
        ("gradients of outputs", "131,072", "from"),
        ("gradients", "1,042,944", "to"),
    ]


def test_the_formula_includes_the_outputs(chapter):
    printed = chapter.text_of("sent, predicted = run.traffic.sent_by_rank")
    shares = [float(share) for share in re.findall(r"(\d\.\d+) of the formula", printed)]
    assert shares == pytest.approx([1] * 4, abs=0.002)


def test_other_ranks_wait_for_the_hub(chapter):
    assert ">loss<" in chapter.svg_of("run = launch(data_parallel, world_size=4")
    assert chapter.text_of("waited_s(run, rank):.0f").count("for the hub") == 3


def test_ddp_sends_the_same_from_every_rank(chapter):
    picture = chapter.svg_of("run = launch(ddp, 1, world_size=4")
    assert "Bytes sent · step" in picture
    assert "predicted" in picture
    assert "Right, within 2 %." in chapter.text_of('"what the hub sends with DP"')
    printed = chapter.text_of("run = launch(ddp, world_size=4")
    assert printed.count("largest difference from one process") == 4


def test_the_hubs_traffic_grows_with_every_rank_and_the_rings_does_not(chapter):
    printed = chapter.text_of("factors = [")
    assert re.findall(r"N = (\d)", printed) == ["2", "3", "4", "8"]
    assert "measured DP: 7, DDP: 1.75" in printed
    assert "<svg" in chapter.svg_of("DP's hub: (N")


def test_all_buckets_but_the_last_start_before_the_last_gradient(chapter):
    printed = chapter.text_of("for cap, run in runs.items():\n    _, calls, ready_s")
    rows = re.findall(
        r"all-reduces +(\d+), started before the last gradient +(\d+), with (\d+)%", printed
    )
    assert rows[0] == ("1", "0", "0")
    assert rows[2:] == [("4", "3", "94"), ("13", "12", "94")]
    assert rows[1][:2] == ("2", "1")  # the default: a first bucket of 1 MiB
    answer = chapter.text_of("predicted_calls.compare(")
    assert "counted 4; predicted" in answer
    assert "that is one for each gradient." in answer
    assert "backward" in chapter.svg_of("timeline(runs[1])")
    assert "<svg" in chapter.svg_of("draw_pass(axes, *second_pass")


def test_no_sync_sends_once_if_it_includes_forward(chapter):
    printed = chapter.text_of("every_time, once = (")
    assert re.findall(r"(\S+ MiB), (\d\.\d+) of the formula", printed) == [
        ("6.0 MiB", "1.001"),
        ("1.5 MiB", "1.001"),
    ]
    assert "despite no_sync: 1.5 MiB" in chapter.text_of("def only_around_backward")


def test_ddp_broadcasts_before_the_first_step(chapter):
    printed = chapter.text_of("run = launch(ddp, 0")
    assert [line.split()[0] for line in printed.splitlines()] == [
        *("all_gather", "broadcast", "broadcast"),
    ]


def test_replicas_stay_as_far_apart_as_they_began(chapter):
    printed = chapter.text_of("together, apart =")
    assert "predicted stays the same. Right." in chapter.text_of("predicted_drift.compare(")
    distances = re.findall(r"distance (\d\.\d+)", printed)
    assert distances[0::2] == ["0.000"] * 3
    assert len(set(distances[1::2])) == 1
    assert float(distances[1]) > 1
    losses = [float(loss) for loss in re.findall(r"loss (\d\.\d+)", printed)]
    assert losses[-2] < losses[0] - 1  # the loss falls on both: nothing looks wrong
    assert losses[-1] < losses[1] - 1


def test_a_missing_gradient_is_silent_an_error_or_a_hang(chapter):
    assert "all-reduces: 0" in chapter.text_of("train_early_exit, [0, 1], 1")
    assert "Expected to have finished reduction" in chapter.text_of("train_early_exit, [0, 1], 2")
    printed = chapter.text_of("train_early_exit, [1], 1")
    assert printed.startswith("rank 1 finished without entering all_reduce, where rank 0 waits")
    assert (
        chapter.text_of("def find_unused").splitlines()
        == [
            "all_reduce of 33,280 bytes, float32",
            "all_reduce of 16 bytes, int32",
        ]
        * 2
    )


def test_a_tied_parameter_is_sent_once_and_a_frozen_one_never(chapter):
    rows = dict(
        re.findall(r"([a-z ]+): +([\d,]+) trainable", chapter.text_of('for kind in ("tied"'))
    )
    trainable = [int(numel.replace(",", "")) for numel in rows.values()]
    assert [name.strip() for name in rows] == ["tied", "untied", "blocks frozen"]
    assert trainable[1] == trainable[0] + 256 * 96
    assert trainable[2] < trainable[0] / 5


def test_ddp_keeps_everything_on_every_rank(chapter):
    printed = chapter.text_of("def in_copies")
    rows = [line.split(": ")[1] for line in printed.splitlines() if line.startswith("N = ")]
    assert len(rows) == 3
    assert len(set(rows)) == 1
    assert rows[0].startswith("parameters 1.00, gradients 1.00, optimizer 2.00,")
    assert "buckets 1.00" in rows[0]
    assert "buckets 0.00" in chapter.text_of("def ddp_in_buckets")


def test_dps_hub_runs_out_of_memory_first(chapter):
    assert float(re.search(r"uses (\d+\.\d) times", chapter.text_of("DP's hub uses"))[1]) > 2
    assert "<svg" in chapter.svg_of("live bytes, in copies of Ψ")


@pytest.mark.browser
def test_its_pictures_still_respond_when_it_is_reopened(chapter, loaded_lab, artifacts):
    seen = try_the_pictures(chapter, loaded_lab, artifacts, also=predictions_are_answered)
    assert seen >= {"timeline", "traffic-map"}


def predictions_are_answered(notebook):
    """Without the kernel: one that was made before the notebook was saved, and one made now."""
    made = notebook.cell("predicted_calls.compare(").widget("comparison")
    expect(made).to_have_attribute("data-outcome", "named")
    answer = notebook.cell("predicted_copies.compare(").widget("comparison")
    expect(answer).to_have_attribute("data-state", "waiting")
    prediction = notebook.cell("predicted_copies = predict(").widget("prediction")
    for field in prediction.get_by_role("textbox").all():
        field.fill("4")
    prediction.get_by_role("button", name="Commit").click()
    answer = notebook.cell("predicted_copies.compare(").widget("comparison")
    expect(answer).to_contain_text("Right, within 2 %.")
