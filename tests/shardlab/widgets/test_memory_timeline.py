from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
import traitlets

from shardlab.display.palette import MEMORY, PREDICTED
from shardlab.run.live_memory import CATEGORIES, Memory, unknown_memory
from shardlab.widgets import memory_timeline
from shardlab.widgets.memory_log import read_log, thin
from tests.shardlab.widgets.interaction import Show, hover, press
from tests.shardlab.widgets.synthetic import make_run, training

MIB = 2**20
LAYERS = 6
# At the start of backward in the second step, when the optimizer states exist.
AT_PEAK = {"parameters": 6, "gradients": 1, "optimizer": 12, "activations": 18, "buckets": 1}


def test_the_peak_has_its_time_and_phase() -> None:
    widget = memory_timeline(training(layers=LAYERS))
    (run,) = widget.scene["runs"]
    (log,) = run["ranks"]
    assert log["peak_bytes"] == (sum(AT_PEAK.values()) + 1) * MIB
    assert log["peak_phase"] == "backward"
    moments = {name: dict(zip(CATEGORIES, counts, strict=True)) for name, counts in log["moments"]}
    assert moments["at the peak"] == {name: n * MIB for name, n in (AT_PEAK | {"other": 1}).items()}
    assert moments["after forward"]["activations"] == 18 * MIB
    assert moments["after backward"]["gradients"] == 6 * MIB
    assert moments["at the end"]["gradients"] == 0
    assert "peak 40,894,464 bytes (39.0 MiB) at 34.3 ms in backward" in widget.summary()


def test_nested_phases_are_drawn_below_the_outer_one() -> None:
    (log,) = memory_timeline(training()).scene["runs"][0]["ranks"]
    lanes = {name: lane for name, _, _, lane in log["phases"]}
    assert {lanes.pop("training step 0"), lanes.pop("training step 1")} == {0}
    assert lanes == {"forward": 1, "backward": 1, "step": 1}
    assert log["span_s"][0] == 0.5  # the model is created in the 120 ms before the first step
    assert 0.6 < log["view_s"][0] < 0.62


def test_a_long_log_is_thinned_and_keeps_its_peaks() -> None:
    memory = training(layers=400, steps=5).memory[0]
    log = read_log(memory, 0, max_points=600)
    assert log.entries > 12_000
    assert len(log.times_s) < 700
    assert log.bytes.sum(axis=0).max() == memory.peak_bytes == sum(log.at(log.peak_s))
    assert [row.max() for row in log.bytes] == [memory.peak_of(name) for name in CATEGORIES]
    for phase in memory.phases:
        assert log.at(round(phase.end_s, 9)) == [phase.at_end[name] for name in CATEGORIES]


def test_thinning_keeps_the_extremes_of_each_group() -> None:
    totals = np.random.default_rng(0).integers(0, 1000, 10_000)
    totals[4321] = 5000
    kept = thin(totals, 300, [7, -1])
    assert len(kept) <= 310
    assert {0, 7, 4321, 9999} <= set(kept)
    assert (np.diff(kept) > 0).all()
    assert totals[kept].min() == totals.min()
    assert list(thin(totals[:5], 300)) == [0, 1, 2, 3, 4]


def test_exact_peaks_and_phase_ends_missing_from_the_log_are_added() -> None:
    """The recorder keeps some entries of a long run; the peak and phase ends are exact."""
    whole = training().memory[0]
    some = slice(None, None, 7)
    memory = replace(
        whole,
        times_s=whole.times_s[some],
        live_bytes={name: line[some] for name, line in whole.live_bytes.items()},
    )
    log = read_log(memory, 0)
    assert sum(log.at(log.peak_s)) == whole.peak_bytes
    assert log.at(whole.phases[0].end_s)[CATEGORIES.index("activations")] == 18 * MIB


def test_predicted_categories_are_stacked_and_others_are_not() -> None:
    predicted = {"optimizer": 12 * MIB, "parameters": 6 * MIB, "device": 30 * MIB}
    widget = memory_timeline(training(), predicted=predicted)
    lines = [m for m in widget.scene["lines"] if m.get("stroke") == PREDICTED]
    box = widget.scene["plot"]
    scale = (box["bottom"] - box["top"]) / widget.scene["max_bytes"]
    heights = [float(m["d"].split()[1].split("H")[0]) for m in lines]
    assert [round((box["bottom"] - y) / scale / MIB, 1) for y in heights] == [30, 18, 6]
    names = [m["text"] for m in widget.scene["lines"] if m["kind"] == "text"]
    assert names[0] == "predicted device 30.0 MiB"


@pytest.mark.parametrize("predicted", [-1, float("nan"), {"peak": float("inf")}])
def test_a_prediction_must_be_a_number_of_bytes(predicted) -> None:
    with pytest.raises(ValueError, match="not a number of bytes"):
        memory_timeline(training(), predicted=predicted)


def test_ranks_and_runs_share_one_scale() -> None:
    widget = memory_timeline({"small": training(2, layers=2), "large": training(3)}, rank=1)
    names = [(run["name"], len(run["ranks"])) for run in widget.scene["runs"]]
    assert names == [("small", 2), ("large", 3)]
    peaks = [log["peak_bytes"] for run in widget.scene["runs"] for log in run["ranks"]]
    assert widget.scene["max_bytes"] > max(peaks) > 2 * peaks[0]
    small = widget.static_svg()
    assert "peak: large 57.0 MiB" in small
    widget.shown, widget.rank = "large", 0
    assert widget.static_svg() != small
    assert "rank 0" in widget.summary()
    with pytest.raises(traitlets.TraitError, match="from 0 to 1"):
        widget.rank = 2
    with pytest.raises(traitlets.TraitError, match="one of"):
        widget.shown = "medium"
    with pytest.raises(ValueError, match="rank=4: must be from 0 to 0"):
        memory_timeline(training(), rank=4)


def test_other_peaks_are_named_on_the_left_if_the_peak_is_on_the_right() -> None:
    runs = {"small": training(2, layers=2), "large": training(3)}

    def place(**more) -> float:
        svg = ElementTree.fromstring(memory_timeline(runs, **more).static_svg())
        (text,) = (node for node in svg.iter() if (node.text or "").startswith("peak: large"))
        return float(text.get("x", "nan"))

    log = memory_timeline(runs).scene["runs"][0]["ranks"][0]
    assert log["peak_s"] > sum(log["span_s"]) / 2
    assert place() < 100 < 300 < place(predicted=MIB)  # a prediction is named on the left


def test_a_run_without_memory_explains_how_to_record_it() -> None:
    with pytest.raises(ValueError, match="memory=True"):
        memory_timeline(make_run(1, []))


def test_the_static_picture_has_an_area_for_each_category_and_stays_small() -> None:
    run = training(layers=400, steps=5)
    svg = memory_timeline({"<b>&": run}).static_svg()
    fills = {node.get("fill") for node in ElementTree.fromstring(svg).iter() if node.get("d")}
    assert set(MEMORY.values()) <= fills
    assert len(svg) < 150_000
    assert "<b>" not in svg


def test_a_rank_without_records_can_be_drawn() -> None:
    run = make_run(1, [])
    run._memory = Memory([unknown_memory()])
    widget = memory_timeline(run)
    ElementTree.fromstring(widget.static_svg())
    assert widget.summary() == "rank 0: no tensors recorded"


@pytest.mark.browser
def test_mouse_and_keyboard_show_the_bytes_of_a_moment(show: Show) -> None:
    widget = memory_timeline(training())
    root = show(widget)
    assert root.get_attribute("data-peak-bytes") == str(39 * MIB)
    press(root, "p")
    text = root.locator(".shardlab-detail").inner_text()
    assert text.startswith("34.3 ms in training step 1, backward: 40,894,464 bytes (39.0 MiB) live")
    assert "activations 18.0 MiB" in text
    box, (first, last) = widget.scene["plot"], widget.log.view_s
    x = box["left"] + (0.6542 - first) / (last - first) * (box["right"] - box["left"])
    hover(root, x, 150)
    assert root.get_attribute("data-selected-bytes") == str(39 * MIB)
    press(root, "Home", "PageDown")
    assert root.get_attribute("data-selected-bytes") == str((6 + 18 + 1) * MIB)  # end of forward
    press(root, "End", "ArrowLeft", "ArrowLeft")
    assert root.get_attribute("data-selected-phase") == "training step 1"


@pytest.mark.browser
def test_arrow_keys_always_advance_and_reach_the_peak(show: Show) -> None:
    root = show(memory_timeline(training(layers=100)))
    press(root, "0", "Home")
    seen = root.evaluate(
        """(root) => {
            const plot = root.querySelector(".shardlab-plot");
            const seen = [];
            while (seen.length < 2 || seen.at(-1) > seen.at(-2)) {
                seen.push(Number(root.dataset.selectedS));
                plot.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
            }
            return seen;
        }"""
    )
    assert seen == sorted(seen)
    assert 100 < len(seen) < 600
    peak_s = float(root.get_attribute("data-peak-s") or 0)
    assert min(abs(at - peak_s) for at in seen) < 1e-6


@pytest.mark.browser
def test_ranks_and_runs_are_chosen_without_the_kernel(show: Show) -> None:
    runs = {"small": training(2, layers=2), "large": training(3)}
    root = show(memory_timeline(runs))
    press(root, "ArrowDown")
    assert root.get_attribute("data-rank") == "1"
    assert root.page.evaluate("[model.get('shown'), model.get('rank')]") == ["small", 1]
    root.get_by_label("Run", exact=True).select_option("large")
    assert root.get_attribute("data-peak-bytes") == str(runs["large"].memory[1].peak_bytes)
    root.get_by_label("Rank", exact=True).select_option("2")
    assert root.get_attribute("data-rank") == "2"
    assert "rank 2, large: peak" in (root.locator("canvas").get_attribute("aria-label") or "")
    root.page.evaluate("model.set('rank', 0)")  # the kernel may set it too
    assert root.get_attribute("data-rank") == "0"


@pytest.mark.browser
def test_the_view_zooms_and_the_table_is_exact(show: Show) -> None:
    root = show(memory_timeline(training(), predicted={"parameters": 6 * MIB}))
    press(root, "0")
    assert float(root.get_attribute("data-view-start-s") or 0) == 0.5
    press(root, "+", "Shift+ArrowRight")
    assert float(root.get_attribute("data-view-start-s") or 0) > 0.55
    root.locator("summary").click()
    root.locator("tbody tr").first.wait_for()
    rows = [row.split() for row in root.locator("tbody tr").all_inner_texts()]
    assert rows[0][-7:] == [str(n * MIB) for n in (6, 1, 12, 18, 1, 1, 39)]
    assert rows[-1] == ["predicted", str(6 * MIB)]
