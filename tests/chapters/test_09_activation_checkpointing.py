"""Chapter 09 runs from top to bottom, and its cells show what its prose says."""

import re

import pytest

from tests.chapters.reopened_notebook import try_the_pictures
from tests.chapters.running_chapter import run

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def chapter(tmp_path_factory):
    chapter = run("09_activation_checkpointing", tmp_path_factory.mktemp("chapter"))
    print(f"\nchapter 09: {chapter.seconds:.0f} s (budget: 60 s)")
    return chapter


def floats(text):
    return [float(number) for number in re.findall(r"\d+\.\d*|\d+", text.replace(",", ""))]


def test_a_block_keeps_sixteen_numbers_for_each_of_its_input(chapter):
    printed = chapter.text_of("def kept_by")
    assert "3.00  attention.qkv: addmm" in printed
    assert "4.00  mlp: gelu" in printed
    assert "attention.out" not in printed  # its output is not needed
    assert "measured 16.06>" in printed


def test_the_formula_and_the_small_terms_it_leaves_out(chapter):
    assert "8.5 MiB  total   measured: 8.5 MiB" in chapter.text_of("kernels = activations.cpu")
    assert "statistics of layer norms" in chapter.text_of("activations.small_terms(")
    assert "<svg" in chapter.svg_of('axes.set(xlabel="tokens s"')


def test_a_checkpoint_keeps_one_sixteenth_and_the_peak_falls(chapter):
    assert "measured 16.06>" in chapter.text_of("def checkpoint_blocks")
    whole, checkpointed = chapter.text_of("full = activations.gpt_terms").strip().splitlines()
    assert "peak 9.0 MiB" in whole
    assert "kept 1.0 MiB (formula 1.0 MiB), peak 3.1 MiB" in checkpointed


def test_the_extra_work_is_one_more_forward(chapter):
    assert "plain step: 3.00 forwards" in chapter.text_of("forward, plain = count_flops")
    early, late = chapter.text_of("for stops_early in").splitlines()
    assert floats(early)[-1] < 1.25 < 1.3 < floats(late)[-1] < 4 / 3


def test_the_best_number_of_segments_is_the_square_root(chapter):
    printed = chapter.text_of("peaks = [round(peak_tensors")
    assert "[37.0, 20.0, 15.0, 12.0, 15.0, 20.0, 37.0]" in printed
    assert "measured 1: 37, 2: 20, 3: 15, 6: 12, 12: 15, 18: 20, 36: 37>" in printed
    rows = chapter.text_of("for layers in (4, 16, 126)").splitlines()
    assert [min(map(int, re.findall(r": (\d+)", row))) for row in rows] == [20, 32, 90]


def test_selective_keeps_less_than_half_for_a_few_per_cent(chapter):
    everything, selective, full = chapter.text_of("all_bytes, plain_work = ").strip().splitlines()
    assert floats(everything) == [100, 1]
    assert floats(selective)[0] < 50
    assert 1 < floats(selective)[1] < 1.05
    assert floats(full)[0] < 10
    shares = [floats(row)[-1] for row in chapter.text_of("def core_again").strip().splitlines()]
    assert shares == [2.6, 0.9, 4.8, 19.0]


def test_published_sizes(chapter):
    sizes = [floats(row)[0] for row in chapter.text_of("gpt_3 = {").strip().splitlines()]
    assert sizes == [256.5, 51.75, 32.06, 9.56, 4.5]
    printed = chapter.text_of("mt_nlg = {")
    assert "70.2% (published: 70 %)" in printed
    assert "65.3% (published: 65 %)" in printed


def test_without_the_random_state_gradients_are_silently_wrong(chapter):
    restored, lost, answer = chapter.text_of("for restores in (True, False)").strip().splitlines()
    assert restored.endswith("bit-equal: True   off by 0%")
    assert "bit-equal: False" in lost
    assert floats(lost)[-1] > 5
    assert "measured different, and nothing warns you" in answer


def test_recomputation_changes_other_state_too(chapter):
    assert chapter.text_of("nn.BatchNorm1d(8)").strip() == "batches seen in one step: 2"
    assert "CheckpointError" in chapter.text_of("class ChangesOnRecompute")


def test_partitioned_inputs_take_half_and_cost_a_gather(chapter):
    assert "measured 0.5>" in chapter.text_of("inputs_bytes = config.layers")
    rows = chapter.text_of("layer = model_traffic").strip().splitlines()
    sent = [floats(row)[0] for row in rows]
    assert sent[1] == pytest.approx(2 * sent[0], rel=0.01)
    assert sent[2] == pytest.approx(2.25 * sent[0], rel=0.01)


def test_gradients_are_the_same_and_inputs_cross_the_link_twice(chapter):
    assert chapter.text_of('truth = runs["kept"]').count("on both ranks: True") == 3
    assert floats(chapter.text_of("def keep_on_host")) == [524288] * 3


def test_the_configuration_section_alone_changes_nothing(chapter):
    printed = chapter.text_of('for name, *case in (("no section"')
    assert "measured 1>" in printed
    assert "the model calls it: 1.0 MiB" in printed


def test_the_older_implementation_is_still_the_default_with_a_warning(chapter):
    rows = chapter.text_of("for said in (").splitlines()
    found = [re.search(r"gradients (\w+), warnings (\d)", row) for row in rows]
    unset, older, newer = [match.groups() for match in found if match]
    assert (unset[0], older[0], newer) == ("False", "False", ("True", "0"))
    assert int(unset[1]) > int(older[1])  # the warning that the parameter is missing
    assert "use_reentrant parameter should be passed explicitly" in rows[1]


def test_the_wrapper_keeps_the_same_bytes(chapter):
    assert "kept: 1.0 MiB, as by hand: 1.0 MiB" in chapter.text_of(
        "apply_activation_checkpointing("
    )


def test_pictures_are_drawn(chapter):
    for cell in ('activation_timeline({"keeps', "activation_timeline(steps)", "fine + n / fine"):
        assert "<svg" in chapter.svg_of(cell)


@pytest.mark.browser
def test_reopened_pictures_respond_to_keys_and_sliders(chapter, loaded_lab, artifacts):
    assert try_the_pictures(chapter, loaded_lab, artifacts) == {"activation-timeline"}
