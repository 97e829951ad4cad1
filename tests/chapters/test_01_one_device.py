"""Chapter 01 runs from top to bottom, and its outputs match its text."""

import re

import pytest

from tests.chapters.reopened_notebook import try_the_pictures
from tests.chapters.running_chapter import run

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def chapter(tmp_path_factory):
    predictions = {"The phase with": '"step"', "Factor by which": "2"}
    folder = tmp_path_factory.mktemp("chapter")
    chapter = run("01_one_device", folder, predictions=predictions)
    print(f"\nchapter 01: {chapter.seconds:.0f} s (budget: 60 s)")
    return chapter


def numbers(text):
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\.?\d*", text)]


def test_it_learns(chapter):
    first, last = re.findall(r"measured (\d+\.\d+)", chapter.text_of("launch(learn"))
    assert float(first) == pytest.approx(5.5, abs=0.2)
    assert float(last) < 4
    assert "<svg" in chapter.svg_of("axes.plot(losses")


def test_the_peak_is_where_forward_ends_and_backward_begins(chapter):
    answer = chapter.text_of("predicted_phase.compare(")
    assert "measured backward; predicted step. Not “step” but “backward”." in answer
    picture = chapter.svg_of("memory_timeline(run)")
    for word in ("activations", "optimizer", "forward", "backward", "step"):
        assert word in picture


def test_after_backward_gradients_exist_and_activations_are_freed(chapter):
    forward, backward, _ = chapter.table_of("row(moment, run.memory[0].at(moment))")
    assert forward["activations"].endswith("MiB")
    assert forward["gradients"] == "–"
    assert backward["gradients"].endswith("MiB")
    assert backward["activations"] == "–"


def test_model_states_and_activations_match_the_prediction(chapter):
    """The cells check the match; this test checks that they show what they compare."""
    states = chapter.table_of("expected in predicted.items()")
    assert [row["model states"] for row in states] == ["parameters", "gradients", "optimizer"]
    batches = chapter.table_of("runs = {(8, 64)")
    assert len(batches) == 4
    for row in batches:
        (predicted,), (measured,) = map(numbers, (row["predicted, bytes"], row["measured, bytes"]))
        assert measured == pytest.approx(predicted, rel=1e-3)
    assert "<svg" in chapter.svg_of("12Ψ + activations")


def test_twice_the_batch_takes_less_than_twice_the_peak(chapter):
    answer = chapter.text_of("predicted_factor.compare(")
    (factor,) = re.findall(r"measured (\S+); predicted 2", answer)
    assert 1.5 < float(factor) < 1.9
    assert "that is by how much the activations grow" in answer
    assert "batch 8" in chapter.svg_of('memory_timeline({"batch 8"')


def test_autocast_shrinks_activations_but_not_model_states(chapter):
    rows = chapter.table_of('{"precision": ""')
    each = "model states, bytes for each parameter"
    states = {row["precision"]: float(row[each]) for row in rows}
    kept = {row["precision"]: float(row["activations"].split()[0]) for row in rows}
    assert states == {"fp32": 16, "bf16 autocast": 16, "bf16": 8}
    assert kept["bf16"] < kept["bf16 autocast"] < kept["fp32"] < 2 * kept["bf16 autocast"]


def test_fp16_loses_small_gradients_and_a_loss_scale_keeps_them(chapter):
    printed = chapter.text_of("zip(SETTINGS, zeros, errors")
    found = re.findall(r"^(.+?) +(\d+\.\d)% +(\d+\.\d\d)%$", printed, re.MULTILINE)
    zeros = {name: float(share) for name, share, _ in found}
    errors = {name: float(error) for name, _, error in found}
    assert zeros["fp16"] > 20 > 1 > zeros["fp32"]
    assert zeros["fp16, loss times 4096"] < 1
    assert zeros["bf16"] < 1
    assert errors["fp16, gradients 1024 times smaller"] > 5 * errors["fp16"]
    assert errors["fp16, loss times 4096"] < errors["fp16"]


def test_the_loss_scale_halves_until_nothing_overflows_and_later_overflows_again(chapter):
    rows = chapter.table_of("enumerate(history[:8])")
    skipped = [row["the step is"] == "skipped" for row in rows]
    assert skipped[0]
    assert not all(skipped)
    assert [row["largest gradient"] in ("inf", "nan") for row in rows] == skipped
    assert "<svg" in chapter.svg_of('label="overflow: skipped"')


def test_ranks_with_separate_scalers_drift_apart(chapter):
    rows = chapter.table_of("launch(own_scaler_on_each_rank")
    (_, weight_0, scale_0), (_, weight_1, scale_1) = (map(float, row.values()) for row in rows)
    assert weight_0 < weight_1
    assert scale_0 > scale_1


def test_layer_norm_weights_do_not_move_in_bf16(chapter):
    assert "counted 0>" in chapter.text_of("predicted_moved.compare(")
    in_bf16, in_fp32 = chapter.table_of('"moved": "d"')
    assert (in_bf16["format"], in_bf16["moved"]) == ("torch.bfloat16", "0")
    assert (in_fp32["format"], in_fp32["moved"]) == ("torch.float32", "320")


def test_four_micro_batches_need_a_quarter_of_the_activations(chapter):
    rows = chapter.table_of("whole, split = runs.values()")
    whole, cut = (float(row["activations at most"].split()[0]) for row in rows)
    assert cut == pytest.approx(whole / 4, rel=0.05)
    assert "4 × 2" in chapter.svg_of('pieces = {"1 × 8": 1')


def test_a_mean_of_means_gives_a_different_gradient(chapter):
    assert chapter.text_of("counted = torch").strip() == "targets that count: [128, 96, 32, 8]"
    (percent,) = numbers(chapter.text_of("mean_of_means = "))
    assert percent > 10
    assert "✓ weighted by tokens" in chapter.text_of("shares = counted")


@pytest.mark.browser
def test_reopened_pictures_respond_to_keys_and_sliders(chapter, loaded_lab, artifacts):
    assert try_the_pictures(chapter, loaded_lab, artifacts) >= {"memory-timeline"}
