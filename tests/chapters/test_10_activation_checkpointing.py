"""Chapter 10 runs from top to bottom, and its outputs match its text."""

import re

import pytest

from tests.chapters.reopened_notebook import try_the_pictures
from tests.chapters.running_chapter import run

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def chapter(tmp_path_factory):
    chapter = run("10_activation_checkpointing", tmp_path_factory.mktemp("chapter"))
    print(f"\nchapter 09: {chapter.seconds:.0f} s (budget: 60 s)")
    return chapter


def floats(text):
    return [float(number) for number in re.findall(r"\d+\.\d*|\d+", text.replace(",", ""))]


def test_a_block_keeps_sixteen_elements_for_each_input_element(chapter):
    rows = {tuple(row.values()) for row in chapter.table_of('{"kept by a block": ""')}
    assert rows >= {("attention.qkv: addmm", "3.00"), ("mlp: gelu", "4.00")}
    assert not any("attention.out" in name for name, _ in rows)  # its output is not needed
    assert "measured 16.06>" in chapter.text_of("predicted_kept.compare(")


def test_the_formula_and_the_small_terms_it_leaves_out(chapter):
    assert chapter.table_of("kernels = activations.cpu")[-1] == {"kept": "total", "size": "8.5 MiB"}
    assert "✓ kept by the forward" in chapter.text_of("kernels = activations.cpu")
    assert "statistics of layer norms" in chapter.text_of("activations.small_terms(")
    assert "<svg" in chapter.svg_of('axes.set(xlabel="tokens s"')


def test_a_checkpoint_keeps_one_sixteenth_and_the_peak_falls(chapter):
    assert "measured 16.06>" in chapter.text_of("def checkpoint_blocks")
    whole, checkpointed = chapter.table_of("full = activations.gpt_terms")
    assert whole["peak"] == "9.0 MiB"
    assert list(checkpointed.values())[1:] == ["1.0 MiB", "1.0 MiB", "3.1 MiB"]


def test_recomputation_costs_one_more_forward(chapter):
    printed = chapter.text_of('holds("forwards in a plain step"')
    assert "a plain step: measured 3, predicted 3" in printed
    rows = chapter.table_of("for stops_early in")
    early, late = (float(row["times the work"]) for row in rows)
    assert early < 1.25 < 1.3 < late < 4 / 3


def test_the_best_number_of_segments_is_the_square_root(chapter):
    printed = chapter.text_of("predicted_peak.compare(")
    rows = chapter.table_of("by_formula = [c + n / c")
    assert [float(row["tensors at the peak"]) for row in rows] == [37, 20, 15, 12, 15, 20, 37]
    assert "measured 1: 37, 2: 20, 3: 15, 6: 12, 12: 15, 18: 20, 36: 37>" in printed
    rows = chapter.table_of("for layers in (4, 16, 126)")
    assert [min(map(int, list(row.values())[1:])) for row in rows] == [20, 32, 90]


def test_selective_recomputation_keeps_less_than_half_for_a_few_percent(chapter):
    rows = chapter.table_of("all_bytes, plain_work = ")
    everything, selective, full = (floats(" ".join(list(row.values())[1:])) for row in rows)
    assert everything == [100, 1]
    assert selective[0] < 50
    assert 1 < selective[1] < 1.05
    assert full[0] < 10
    shares = [row["more work"] for row in chapter.table_of("def core_again")]
    assert shares == ["2.6%", "0.9%", "4.8%", "19.0%"]


def test_published_sizes(chapter):
    sizes = [float(row["activations, GiB"]) for row in chapter.table_of("gpt_3 = {")]
    assert sizes == [256.5, 51.75, 32.06, 9.56, 4.5]
    printed = chapter.text_of("mt_nlg = {")
    assert re.findall(r"measured (\S+) %, predicted (\d+) %", printed) == [
        ("70.18", "70"),
        ("65.31", "65"),
    ]


def test_without_the_random_state_gradients_are_silently_wrong(chapter):
    restored, lost = (list(row.values()) for row in chapter.table_of('{"random state restored"'))
    assert restored == ["True", "True", "0%"]
    assert lost[:2] == ["False", "False"]
    assert float(lost[2].removesuffix("%")) > 5
    answer = chapter.text_of("for restores in (True")
    assert "measured different, and nothing warns you" in answer


def test_recomputation_changes_other_state_too(chapter):
    assert chapter.text_of("nn.BatchNorm1d(8)").strip() == "batches seen in one step: 2"
    assert "CheckpointError" in chapter.text_of("class ChangesOnRecompute")


def test_partitioned_inputs_take_half_and_cost_a_gather(chapter):
    assert "measured 0.5>" in chapter.text_of("inputs_bytes = config.layers")
    found = re.findall(r"measured 2 × ([\d,]+) bytes", chapter.text_of("layer = model_traffic"))
    sent = [float(bytes_.replace(",", "")) for bytes_ in found]
    assert sent[1] == pytest.approx(2 * sent[0], rel=0.01)
    assert sent[2] == pytest.approx(2.25 * sent[0], rel=0.01)


def test_gradients_are_the_same_and_inputs_cross_the_link_twice(chapter):
    assert chapter.text_of('truth = runs["kept"]').count("on both ranks\n") == 3
    assert "measured 2 × 524,288 bytes" in chapter.text_of("def keep_on_host")


def test_the_configuration_section_alone_changes_nothing(chapter):
    assert "measured 1>" in chapter.text_of("predicted_effect.compare(")
    rows = chapter.table_of('{"activation_checkpointing": "", "kept"')
    assert list(rows[-1].values()) == ["the model calls it", "1.0 MiB"]


def test_the_older_implementation_is_still_the_default_with_a_warning(chapter):
    rows = chapter.text_of("for said in (").splitlines()
    found = [re.search(r"gradients (\w+), warnings (\d)", row) for row in rows]
    unset, older, newer = [match.groups() for match in found if match]
    assert (unset[0], older[0], newer) == ("False", "False", ("True", "0"))
    assert int(unset[1]) > int(older[1])  # warns about the missing argument
    assert "use_reentrant parameter should be passed explicitly" in rows[1]


def test_the_wrapper_keeps_the_same_bytes(chapter):
    assert "(equal)" in chapter.text_of("apply_activation_checkpointing(")


def test_pictures_are_drawn(chapter):
    for cell in ('activation_timeline({"keeps', "activation_timeline(steps)", "fine + n / fine"):
        assert "<svg" in chapter.svg_of(cell)


def test_two_forwards_lose_gradients_only_with_reentrant_checkpointing(chapter):
    rows = [tuple(row.values()) for row in chapter.table_of("launch(two_forwards")]
    assert rows == [
        ("none", "28", "28", "0"),
        ("not reentrant", "28", "28", "0"),
        ("reentrant", "28", "20", "8"),  # four parameters of each block's MLP
    ]


@pytest.mark.browser
def test_reopened_pictures_respond_to_keys_and_sliders(chapter, loaded_lab, artifacts):
    assert try_the_pictures(chapter, loaded_lab, artifacts) == {"activation-timeline"}
