"""Chapter 16 runs from top to bottom, and its outputs match its text.

Shares of a step are compared only where one is far above the other: they depend on the load.
"""

import re

import pytest
from playwright.sync_api import expect

from tests.chapters.reopened_notebook import assert_everything_fits, reopen
from tests.chapters.running_chapter import run

pytestmark = [pytest.mark.ranks, pytest.mark.long]


@pytest.fixture(scope="module")
def chapter(tmp_path_factory):
    predictions = {
        "share of waiting": '"the largest"',
        "all-reduce in each micro-batch": "4",
        "with one row": "0.0034",
        "Tokens per GPU": "8192",
        "MFU of this run": "0.26",
        "one graph": "3",
    }
    folder = tmp_path_factory.mktemp("chapter")
    chapter = run("16_where_the_time_goes", folder, predictions=predictions)
    print(f"\nchapter 16: {chapter.seconds:.0f} s (budget: 60 s)")
    return chapter


@pytest.fixture(scope="module")
def notebook(chapter, loaded_lab):
    notebook = reopen(chapter, loaded_lab)
    yield notebook
    notebook.close()


def share(text):
    return float(text.removesuffix("%")) / 100


def before_and_after(chapter, code):
    before, after = chapter.table_of(code)
    return before, after


def test_both_sources_take_the_step_apart_on_all_ranks(chapter):
    rows = chapter.table_of("for source in")
    assert [(row["by"], row["rank"]) for row in rows] == [
        (source, str(rank)) for source in ("records", "profiler") for rank in range(4)
    ]
    states = ("compute", "overlapped", "exposed", "waiting", "loader", "other")
    for row in rows:
        assert sum(share(row[state]) for state in states) == pytest.approx(1, abs=0.03)  # rounded
    assert "✓ exposed and waiting" in chapter.text_of("def still")


def test_the_trace_has_all_ranks(chapter):
    assert re.search(r"all_ranks\.json: \d+ kB", chapter.text_of("save_trace"))


def test_the_rank_that_waits_least_is_the_slow_one(chapter):
    answer = chapter.text_of("predicted_share.compare")
    assert "measured the smallest" in answer
    assert "what the ranks that wait for it have" in answer
    waits = [share(row["waiting"]) for row in chapter.table_of("timeline(slow,")]
    assert waits[2] == min(waits)
    on_path = [share(row["of the critical path"]) for row in chapter.table_of("on_path =")]
    assert on_path[2] == max(on_path) > 0.5


def test_reading_ahead_hides_the_loader(chapter):
    before, after = before_and_after(chapter, "each_time, ahead =")
    assert share(after["loader"]) < share(before["loader"])
    assert "✓ seconds in the loader" in chapter.text_of("def loader_s")


def test_one_message_has_the_bytes_of_many(chapter):
    before, after = before_and_after(chapter, "one_by_one, flat =")
    assert (before["calls of rank 0"], after["calls of rank 0"]) == ("84", "3")
    assert before["time"] == "1.00"
    assert float(before["MB sent"]) == pytest.approx(float(after["MB sent"]), rel=0.05)


def test_logging_synchronizes_every_micro_batch(chapter):
    answer = chapter.text_of("predicted_factor.compare")
    assert "calculated 2.909" in answer
    assert "that is the number of all-reduces" in answer
    before, after = before_and_after(chapter, "logging, quiet =")
    assert (before["calls of rank 0"], after["calls of rank 0"]) == ("12", "4")


def test_one_row_uses_a_third_of_a_percent(chapter):
    assert "calculated 0.00338" in chapter.text_of("predicted_peak.compare")
    rows = chapter.table_of('"FLOP per byte"')
    intensity = [float(row["FLOP per byte"]) for row in rows]
    assert intensity == sorted(intensity)
    assert intensity[0] == 0.5  # two operations for four bytes


def test_thresholds_are_the_published_ones(chapter):
    rows = chapter.table_of("compare_published(thresholds")
    assert [(row["computed"], row["published"]) for row in rows] == [
        ("2,474", "2,475"),
        ("1,040", "1,000"),
    ]
    printed = chapter.text_of("roofline.tensor_parallel_ranks")
    assert "up to 13.0 ranks" in printed
    assert "up to 24.2 ranks" in printed
    answer = chapter.text_of("predicted_tokens.compare")
    assert "calculated 1,024" in answer
    assert "that is the tokens of one sequence" in answer


def test_published_utilization_is_recomputed(chapter):
    answer = chapter.text_of("predicted_mfu.compare")
    assert "calculated 0.337" in answer
    assert "that is the MFU without attention" in answer
    assert len(chapter.table_of("compare_published(reports")) == 4
    printed = chapter.text_of("compare_published(reports")
    assert "Megatron 1T, MFU: 39.2%" in printed
    shown = {row["mistake"]: row["“MFU”"] for row in chapter.table_of('"mistake"')}
    assert shown["none"] == "33.7%"
    assert share(shown["the peak of an A100"]) > 1
    assert "data 4 gives 8,192 GPUs" in chapter.text_of("for data_ranks in")


def test_the_flight_recorder_and_our_report_name_the_same_rank(chapter):
    report = chapter.text_of("except RunTimeout")
    waiting = "waiting in all_reduce (collective 3 of its group), for rank 2"
    assert all(f"rank {rank}   {waiting}" in report for rank in (0, 1, 3))
    entry = chapter.text_of('"collective_seq_id"')
    assert "['rank_0', 'rank_1', 'rank_2', 'rank_3']" in entry
    assert "collective_seq_id: 3" in entry
    assert "retired: False" in entry
    analysis = chapter.text_of("flight_recorder.fr_trace")
    assert "Not all ranks joining collective, sequence number: 3" in analysis
    assert "missing ranks: {2}" in analysis


def test_one_graph_has_no_overlap_and_a_graph_break_has_some(chapter):
    rows = {row["model"]: row for row in chapter.table_of("operations of layers in backward")}
    operations = [int(row["operations of layers in backward"]) for row in rows.values()]
    assert operations[:3] == [8, 1, 2]
    assert operations[3] > 2  # a graph for each of DDP's buckets
    early = {name: int(row["begun before the last"]) for name, row in rows.items()}
    assert early["one graph"] == 0 < early["graph break"]
    assert 0 < early["DDP's default"] < int(rows["DDP's default"]["all-reduces"])
    assert "that is the count without compile" in chapter.text_of("predicted_early.compare")


@pytest.mark.browser
def test_everything_fits_in_a_small_window(lab, notebook, artifacts):
    assert_everything_fits(notebook, lab, artifacts / "chapter-16-small")


@pytest.mark.browser
def test_it_runs_without_errors(lab, notebook):
    assert notebook.errors_and_stderr() == []
    assert lab.errors == []


@pytest.mark.browser
def test_the_roofline_by_keyboard(lab, notebook):
    cell = notebook.cell("counts = {2**k")
    plot = cell.widget("roofline-plot")
    plot.get_by_role("slider").focus()
    lab.page.keyboard.press("End")
    expect(plot).to_contain_text("131,072 tokens")
    assert cell.is_active(), "a key reached the notebook"


@pytest.mark.screenshots
@pytest.mark.browser
def test_screenshots_in_both_themes(lab, notebook, artifacts):
    lab.screenshot_in_both_themes(
        artifacts,
        {
            "chapter-16-step": lambda: notebook.cell("run = launch(train,").element,
            "chapter-16-straggler": lambda: notebook.cell("timeline(slow,").element,
            "chapter-16-loader": lambda: notebook.cell("timeline(each_time,").element,
            "chapter-16-messages": lambda: notebook.cell("timeline(one_by_one,").element,
            "chapter-16-logging": lambda: notebook.cell("timeline(logging,").element,
            "chapter-16-roofline": lambda: notebook.cell("roofline_plot({").element,
            "chapter-16-gpus": lambda: notebook.cell("gpus = {").element,
            "chapter-16-thresholds": lambda: notebook.cell("counts = {2**k").element,
        },
    )
