"""Chapter 01 runs from top to bottom, and its cells show what its prose says."""

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
    first, last = re.search(
        r"loss (\S+) at first, (\S+) over", chapter.text_of("launch(learn")
    ).groups()
    assert float(first) == pytest.approx(5.5, abs=0.2)
    assert float(last) < 4
    assert "<svg" in chapter.svg_of("axes.plot(losses")


def test_the_peak_is_where_forward_ends_and_backward_begins(chapter):
    cell = "run = measure()"
    answer = chapter.text_of("predicted_phase.compare(")
    assert "measured backward; predicted step. Not “step” but “backward”." in answer
    picture = chapter.svg_of(cell)
    for word in ("activations", "optimizer", "forward", "backward", "step"):
        assert word in picture


def test_after_backward_gradients_exist_and_activations_are_freed(chapter):
    forward, backward, _ = chapter.text_of("print_table(run.memory[0])").splitlines()
    assert "activations" in forward
    assert "gradients" not in forward
    assert "gradients" in backward
    assert "activations" not in backward


def test_model_states_and_activations_match_the_prediction(chapter):
    """The cells assert the match themselves; here we check that they print what they compare."""
    states = chapter.text_of("expected_bytes in predicted.items()").splitlines()
    assert [line.split()[0] for line in states] == ["parameters", "gradients", "optimizer"]
    batches = chapter.text_of("runs = {(8, 64)").splitlines()
    assert len(batches) == 4
    for line in batches:
        predicted, measured = numbers(line)[-2:]
        assert measured == pytest.approx(predicted, rel=1e-3)
    assert "<svg" in chapter.svg_of("12Ψ + activations")


def test_twice_the_batch_takes_less_than_twice_the_peak(chapter):
    answer = chapter.text_of("predicted_factor.compare(")
    (factor,) = re.findall(r"measured (\S+); predicted 2", answer)
    assert 1.5 < float(factor) < 1.9
    assert "that is by how much the activations grow" in answer
    assert "batch 8" in chapter.svg_of("larger = measure(")


def test_autocast_shrinks_activations_and_no_model_states(chapter):
    printed = chapter.text_of("{states_bytes[name]:5.2f} bytes")
    found = re.findall(r"(.+?) +(\d+\.\d+) bytes .* activations (\S+) MiB", printed)
    states = {name.strip(): float(bytes_) for name, bytes_, _ in found}
    kept = {name.strip(): float(mib) for name, _, mib in found}
    assert states == {"fp32": 16, "bf16 autocast": 16, "bf16": 8}
    assert kept["bf16"] < kept["bf16 autocast"] < kept["fp32"] < 2 * kept["bf16 autocast"]


def test_fp16_loses_small_gradients_and_a_loss_scale_keeps_them(chapter):
    printed = chapter.text_of("for name, share, error in zip(SETTINGS")
    found = re.findall(r"^(.+?) +(\d+\.\d)% +(\d+\.\d\d)%$", printed, re.MULTILINE)
    zeros = {name: float(share) for name, share, _ in found}
    errors = {name: float(error) for name, _, error in found}
    assert zeros["fp16"] > 20 > 1 > zeros["fp32"]
    assert zeros["fp16, loss times 4096"] < 1
    assert zeros["bf16"] < 1
    assert errors["fp16, gradients 1024 times smaller"] > 5 * errors["fp16"]
    assert errors["fp16, loss times 4096"] < errors["fp16"]


def test_the_scale_halves_until_it_fits_and_later_overflows_again(chapter):
    lines = chapter.text_of("enumerate(history[:8])").splitlines()
    skipped = [line.endswith("skipped") for line in lines]
    assert skipped[0]
    assert not all(skipped)
    assert [("inf" in line or "nan" in line) for line in lines] == skipped
    assert "<svg" in chapter.svg_of('label="overflow: skipped"')


def test_ranks_with_separate_scalers_drift_apart(chapter):
    printed = chapter.text_of("launch(own_scaler_on_each_rank")
    (_, weight_0, scale_0, _), (_, weight_1, scale_1, _) = map(numbers, printed.splitlines())
    assert weight_0 < weight_1
    assert scale_0 > scale_1


def test_layer_norm_weights_do_not_move_in_bf16(chapter):
    assert "counted 0>" in chapter.text_of("launch(norm_weights_after")
    printed = chapter.text_of("zip(dtypes, norms, moved")
    assert re.search(r"bfloat16 +0 of 320 have moved", printed)
    assert re.search(r"float32 +320 of 320 have moved", printed)


def test_accumulation_needs_a_quarter_of_the_activations(chapter):
    printed = chapter.text_of("whole, split = runs.values()")
    whole, cut = map(float, re.findall(r"activations up to (\S+) MiB", printed))
    assert cut == pytest.approx(whole / 4, rel=0.05)
    assert "4 × 2" in chapter.svg_of('pieces = {"1 × 8": 1')


def test_a_mean_of_means_gives_a_different_gradient(chapter):
    assert chapter.text_of("counted = torch").strip() == "targets that count: [128, 96, 32, 8]"
    (percent,) = numbers(chapter.text_of("mean_of_means = "))
    assert percent > 10
    assert float(chapter.text_of("shares = counted").split()[-1]) < 1e-5


@pytest.mark.browser
def test_its_pictures_still_respond_when_it_is_reopened(chapter, loaded_lab, artifacts):
    assert try_the_pictures(chapter, loaded_lab, artifacts) >= {"memory-timeline"}
