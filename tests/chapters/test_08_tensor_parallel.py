"""Chapter 08 runs from top to bottom, and its outputs match its text."""

import re

import pytest

from tests.chapters.reopened_notebook import try_the_pictures
from tests.chapters.running_chapter import run

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def chapter(tmp_path_factory):
    chapter = run("08_tensor_parallel", tmp_path_factory.mktemp("chapter"))
    print(f"\nchapter 08: {chapter.seconds:.0f} s (budget: 60 s)")
    return chapter


def floats(text):
    return [float(number) for number in re.findall(r"\d+\.\d*|\d+", text)]


def passes(printed):
    """(predicted, measured) of each pass, in S."""
    rows = re.findall(r"in S: measured (?P<m>\S+), predicted (?P<p>\S+)", printed)
    rows = [(predicted, measured) for measured, predicted in rows]
    return [(float(predicted), float(measured)) for predicted, measured in rows]


def held_on_every_rank(printed):
    held = re.findall(r"✓ (\w+) on every rank, and in one process: .+[ (](?:apart|equal)", printed)
    return held == ["output", "gradients"]


def calls(chapter, cell):
    """(collective, calls in forward, calls in backward)."""
    return [tuple(row.values()) for row in chapter.table_of(cell)]


def test_columns_are_complete_and_rows_give_partial_sums(chapter):
    printed = chapter.text_of("by_rows = [own @ part")
    assert "(512, 96) and (512, 384)" in printed
    assert printed.count("and XW: measured") == 2
    assert "✓ largest difference" in chapter.text_of("sum_of_gelus = gelu")  # GELU is not linear


def test_an_mlp_makes_one_all_reduce_each_way(chapter):
    assert calls(chapter, "show_calls(run)") == [("all_reduce", "1", "1")]
    held = re.findall(
        r"✓ (\S+?):? .+ in one process: .+[ (](?:apart|equal)", chapter.text_of("ys, dxs, dw1")
    )
    assert held == ["Y", "dX", "dW₁", "dW₂"]


def test_a_naive_split_gives_a_rank_only_queries(chapter):
    rows = [tuple(row.values()) for row in chapter.table_of("columns = np.repeat")]
    assert rows[:2] == [("0", "72", "0", "0"), ("1", "24", "48", "0")]


def test_a_layer_makes_two_all_reduces_each_way_and_sends_what_is_predicted(chapter):
    assert calls(chapter, "show_calls(plain)") == [("all_reduce", "2", "2")]
    sent = passes(chapter.text_of("def compare"))
    assert [predicted for predicted, _ in sent] == [3, 3]
    assert all(measured == pytest.approx(predicted, rel=0.01) for predicted, measured in sent)
    assert held_on_every_rank(chapter.text_of("def same_as_one_process"))


def test_sequence_parallelism_sends_the_same_on_a_ring_and_more_on_gloo(chapter):
    ratios = chapter.table_of('{"reduce-scatter as": ""')
    assert [row["bytes over those of the all-reduces"] for row in ratios] == ["1.00", "1.50"]
    printed = chapter.text_of("compare(sequence")
    assert calls(chapter, "compare(sequence") == [
        ("all_gather_single", "2", "2"),
        ("reduce_scatter_single", "2", "2"),
    ]
    assert passes(printed)[0] == (4.5, pytest.approx(4.5, rel=0.01))
    assert held_on_every_rank(printed)
    assert printed.strip().endswith("[384, 384, 384, 384]")  # the norms' gradients, afterwards


def test_activations_match_the_formula(chapter):
    rows = chapter.table_of("kernels = activations")
    kept = [(float(row["formula"]), float(row["measured"])) for row in rows]
    assert kept[0] == (7, pytest.approx(7, rel=0.02))
    assert kept[1] == (4, pytest.approx(5.5, rel=0.02))  # DTensor keeps gathered inputs
    again = chapter.table_of("gather_inputs_again=True")
    assert [row["sent, in S"] for row in again] == ["4.5", "3.0"]


def test_the_loss_takes_three_numbers_per_token(chapter):
    gathered, split = re.findall(r"\d\.\d+", chapter.text_of("first loss: {"))
    gathered, split = float(gathered), float(split)
    assert gathered == pytest.approx(split, abs=1e-5)
    assert "counted 9.0 KiB" in chapter.text_of("all_reduces_of_loss(split)")
    printed = chapter.text_of("first loss: {")
    assert "3 all-reduces of one number" in printed
    assert "393,216 bytes" in printed
    assert "8.4 GB whole, 1.05 GB split" in chapter.text_of("logits_bytes = ")


def test_two_nodes_are_faster_than_one_but_less_efficient(chapter):
    rows = chapter.table_of('"computes, ms": ".1f"')
    totals_ms = [float(row["computes, ms"]) + float(row["sends, ms"]) for row in rows]
    busy = [int(row["busy"].removesuffix("%")) for row in rows]
    assert totals_ms[:4] == sorted(totals_ms[:4], reverse=True)
    assert busy == sorted(busy, reverse=True)
    assert busy[2:] == [95, 84, 59]  # within a node, over two, one rank per node
    assert "<svg" in chapter.svg_of("axes.bar(list(times)")
    gradients_ms, saved_ms, *_ = floats(chapter.text_of("gradients_ms = "))
    assert gradients_ms / saved_ms == pytest.approx(7, abs=0.5)


def test_a_mesh_trains_like_one_process_and_each_pair_sends_what_is_predicted(chapter):
    rows = chapter.table_of('"dp": "d", "tp": "d"')
    assert [tuple(int(row[name]) for name in ("rank", "dp", "tp")) for row in rows] == [
        (0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)
    ]  # fmt: skip
    pairs = chapter.text_of("in_a_column += ").splitlines()
    assert [pair.split(":")[0] for pair in pairs] == [f"✓ rank 0 to {peer}" for peer in (1, 2, 3)]
    assert "measured 0 bytes" in pairs[2]
    assert chapter.text_of("mean = np.mean([losses[step]").count("✓") == 2


def test_across_a_slow_link_rows_send_more_only_with_many_tokens(chapter):
    assert "measured 2.8" in chapter.text_of("predicted_across.compare")
    cell = '"link alone, s": ".2f"'
    rows = chapter.table_of(cell)
    assert [(row["sequences"], row["mesh"]) for row in rows] == [
        (sequences, mesh)
        for sequences in ("4", "16")
        for mesh in ("rows in nodes", "rows across nodes")
    ]
    assert [row["leaves a node"] for row in rows] == ["2.1 MiB", "1.5 MiB", "2.1 MiB", "6.0 MiB"]
    assert [float(row["link alone, s"]) for row in rows] == [0.18, 0.13, 0.18, 0.50]
    assert chapter.text_of(cell).count("✓") == 4


def test_each_mistake_shows_in_the_numbers(chapter):
    assert "predicted 3" in chapter.text_of("each_adds_it = ")
    assert calls(chapter, "three_times = launch") == [("all_reduce", "2", "4")]
    three_times = chapter.text_of("three_times = launch")
    assert held_on_every_rank(three_times)
    assert "✓ bytes in backward, relative to our plan" in three_times
    tied, untied = chapter.table_of("untied = launch")
    assert tied["loss 0"] == untied["loss 0"]
    assert float(untied["loss 1"]) > float(tied["loss 1"]) + 0.1
    assert floats(chapter.text_of("mixed = launch"))[-1] > 0.01
    rows = chapter.table_of("launch(with_dropout")
    own_seed, same_seed = (row["elements that differ"] for row in rows)
    assert int(own_seed.removesuffix("%")) > 10
    assert same_seed == "0%"


def test_pictures_are_drawn(chapter):
    for cell in ('tensor_split("columns"', 'tensor_split("mlp"', 'tensor_split("sequence"'):
        assert "<svg" in chapter.svg_of(cell)
    assert "measured" in chapter.svg_of('tensor_split("mlp"')
    assert "<svg" in chapter.svg_of("traffic_map(mesh_run")


@pytest.mark.browser
def test_reopened_pictures_respond_to_keys_and_sliders(chapter, loaded_lab, artifacts):
    assert try_the_pictures(chapter, loaded_lab, artifacts) >= {"tensor-split", "traffic-map"}
