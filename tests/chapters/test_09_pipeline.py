"""Chapter 09 runs from top to bottom, and its outputs match its text."""

import re

import pytest

from tests.chapters.reopened_notebook import try_the_pictures
from tests.chapters.running_chapter import run

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def chapter(tmp_path_factory):
    chapter = run("09_pipeline", tmp_path_factory.mktemp("chapter"))
    print(f"\nchapter 08: {chapter.seconds:.0f} s (budget: 60 s)")
    return chapter


def floats(text):
    return [float(number) for number in re.findall(r"\d+\.\d*|\d+", text)]


def test_naive_schedule_keeps_one_device_in_four_busy(chapter):
    assert "simulated 0.25>" in chapter.text_of("alone = simulate")
    assert "<svg" in chapter.svg_of("pipeline_schedule(p, 1")


def test_bubbles_match_the_formulas(chapter):
    assert "simulated 0.375>" in chapter.text_of("predicted_bubble.compare(")
    printed = chapter.text_of("result.bubble_over_ideal, (p - 1) / (2 * m)")
    assert "measured 0.1875, predicted 0.1875" in printed
    assert "device: 11 9 7 5\n" in printed
    rows = [list(row.values()) for row in chapter.table_of("split, whole_b = ")]
    assert rows == [["zb-h1", "0.125", *"4444"], ["1f1b", "0.375", *"4321"]]
    assert floats(chapter.text_of("v_shape = ").split("ideal:")[1])[0] == pytest.approx(0.0625)


def test_where_the_formulas_hold(chapter):
    rows = [map(float, row.values()) for row in chapter.table_of("def interleaved_row")]
    for m, bubble, formula, *in_flight in rows:
        assert (bubble == pytest.approx(formula, abs=1e-4)) == (m >= 4)
        assert in_flight[0] == {8: 11, 6: 12, 4: 8, 3: 6}[m]
    zb_v = [map(float, row.values()) for row in chapter.table_of("v_shape = ")]
    assert [(m, bubble == 0) for m, bubble in zb_v] == [
        *((m, False) for m in (4, 5, 6)),
        *((m, True) for m in (7, 8)),
    ]


def test_the_puzzle_is_not_solved_in_the_chapter(chapter):
    prose = " ".join(cell.source for cell in chapter.notebook.cells)
    assert "That is the puzzle of the lab" in prose
    assert not re.search(r"(delays?|late) (each|every|its) `W`s? by", prose)


def test_real_ranks_compute_the_gradients_of_one_process(chapter):
    cells = ['check("gpipe"', "def in_flight(run)", 'check("interleaved"', "zb_h1(p, m), 1)"]
    printed = "\n".join(map(chapter.text_of, [*cells, 'check_gradients("two']))
    shown = r"^✓ (\S+|two pipelines): {} in one process: measured .+[ (](?:apart; .+ allowed|equal)"
    schedules = ["gpipe", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"]
    assert re.findall(shown.format("loss, and"), printed, re.M) == schedules
    gradients = re.findall(shown.format("gradients on all ranks, and"), printed, re.M)
    assert gradients == [*schedules, "two pipelines"]
    rows = [list(row.values())[2:] for row in chapter.table_of("def in_flight(run)")]
    assert rows == [[*"8888"], [*"4321"]]


def test_measured_activations_match_the_simulation(chapter):
    rows = chapter.table_of('{"micro-batches held": ""')
    gpipe, one_f_one_b = (list(map(float, list(row.values())[1:])) for row in rows)
    assert gpipe == pytest.approx([16] * 4, rel=0.02)
    assert one_f_one_b == pytest.approx([4, 3, 2, 1], rel=0.02)
    assert "<svg" in chapter.svg_of("figure, axes = plt.subplots")


def test_interleaving_sends_across_seven_boundaries_instead_of_three(chapter):
    factor = re.search(r"measured (\d\.\d+)", chapter.text_of('factor = sent["interleaved"]'))
    assert float(factor[1]) == pytest.approx(7 / 3, rel=0.01)
    assert "768.0 KiB predicted" in chapter.text_of("boundary_bytes = ")


def test_every_schedule_ran_and_is_listed(chapter):
    rows = chapter.table_of("def makespan")
    names = ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"]
    assert [row["schedule"] for row in rows] == names
    assert [row["simulated, ms"] for row in rows] == ["660", "660", "570", "540", "510"]


def test_failures_are_explained(chapter):
    assert "needs stage 1's backward first: device 0 waits forever" in chapter.text_of("swapped = ")
    printed = chapter.text_of("launch(blocking, one_f_one_b(2, 4)")
    assert printed.splitlines() == ["GPipe finished", "1F1B did not"]
    assert "all wait in send" in chapter.svg_of("timeline(hang)")
    assert chapter.text_of("for each in messages").count("gradient") == 3
    assert chapter.text_of("together = first").split() == ["alone:", "False", "summed:", "True"]


def test_a_slow_stage_makes_the_others_idle(chapter):
    steps = [float(row["step"]) for row in chapter.table_of("slow_end = ")]
    assert steps == sorted(steps)
    assert steps[-1] > 1.5 * steps[0]


def test_more_replicas_have_fewer_micro_batches_and_larger_bubbles(chapter):
    assert "= 16, as before" in chapter.text_of('print(f"global batch')
    rows = [list(map(float, row.values())) for row in chapter.table_of("for dp in (16, 64, 128)")]
    assert rows == [[16, 128, 0.12, 0.03], [64, 32, 0.47, 0.12], [128, 16, 0.94, 0.23]]


def test_torchs_schedules_agree(chapter):
    assert chapter.text_of("launch(with_torch").count("the same gradients") == 4


@pytest.mark.browser
def test_reopened_pictures_respond_to_keys_and_sliders(chapter, loaded_lab, artifacts):
    assert try_the_pictures(chapter, loaded_lab, artifacts) >= {"timeline", "pipeline-schedule"}
