"""Chapter 03 runs from top to bottom, and its outputs match its text.

Seconds are printed, never asserted: they depend on the machine and its load.
"""

import re

import pytest
from playwright.sync_api import expect

from shardlab import node_runs
from shardlab.display.palette import rank_color
from tests.chapters.reopened_notebook import assert_everything_fits, reopen
from tests.chapters.running_chapter import run

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def chapter(tmp_path_factory):
    predictions = {
        "the tensor takes": "[3 * tensor_bytes, tensor_bytes, tensor_bytes, tensor_bytes]",
        "Chunk 2 is complete": '"rank 3"',
        "(S is": "3 * tensor_bytes // 4",
        "leave each node": "[7 * tensor_bytes, 10 * tensor_bytes]",
    }
    folder = tmp_path_factory.mktemp("chapter")
    chapter = run("03_ring_all_reduce", folder, predictions=predictions)
    print(f"\nchapter 03: {chapter.seconds:.0f} s (budget: 60 s)")
    return chapter


@pytest.fixture(scope="module")
def notebook(chapter, loaded_lab):
    """The chapter reopened in JupyterLab, as on the next day: its old kernel is gone."""
    notebook = reopen(chapter, loaded_lab)
    yield notebook
    notebook.close()


def numbers_by_rank(printed):
    return [
        [int(number) for number in row.split(", ")]
        for row in re.findall(r"^rank \d \[(.*)\]$", printed, re.MULTILINE)
    ]


def test_two_levels_send_less_between_nodes_and_more_in_all(chapter):
    answer = chapter.text_of("predicted_leaving.compare")
    assert "measured ring: 7.0 MiB, two levels: 4.0 MiB" in answer
    assert "0 of 2 right: that is what all its ranks send" in answer
    table = chapter.text_of("link_s = [")
    assert re.search(r"^ring +7.0 MiB +0.59 .* 1.75$", table, re.MULTILINE)
    assert re.search(r"^two levels +4.0 MiB +0.34 .* 2.50$", table, re.MULTILINE)
    assert "between nodes" in chapter.svg_of('block="two levels"')
    links = chapter.svg_of('traffic_map(run, mode="links")')
    assert links.count("sent 11.0 MiB, received 11.0 MiB, 100 Mbit/s") == 2


def test_the_recorded_run_sent_the_same_bytes(chapter):
    sent = node_runs.load("03_two_nodes").traffic
    leaving = [sent[way].between_nodes[0, 1] / 2**20 for way in ("ring", "two levels")]
    assert leaving == pytest.approx([7, 4], rel=0.01)


def test_the_hub_computes_the_sum_and_carries_all_traffic(chapter):
    assert "[6.0, 6.0, 6.0, 6.0]" in chapter.text_of("sum on each rank")
    assert "12.0 MiB" in chapter.svg_of("run = launch(hub_all_reduce")


def test_after_one_step_one_chunk_is_the_sum_of_two_ranks(chapter):
    rows = numbers_by_rank(chapter.text_of("launch(reduce_scatter_of_four, 1,"))
    for rank, row in enumerate(rows):
        changed = {number for number in row if number != 10**rank}
        assert changed == {10**rank + 10 ** ((rank - 1) % 4)}
        assert row.count(10**rank) == 6


def test_after_three_steps_rank_r_has_the_complete_chunk_r(chapter):
    rows = numbers_by_rank(chapter.text_of("for rank, summed in"))
    assert len(rows) == 4
    for rank, row in enumerate(rows):
        assert [i for i, number in enumerate(row) if number == 1111] == [2 * rank, 2 * rank + 1]
    answer = chapter.text_of("complete_on =")
    assert "measured rank 2; predicted rank 3. Rank 3: that is the rank that sends" in answer


def test_after_the_second_round_all_ranks_have_all_chunks(chapter):
    assert chapter.text_of("launch(all_reduce_of_four").count("1111") == 4 * 8
    assert "24 messages, 384 B, in 6 steps" in chapter.svg_of("ring_player(run)")


def test_the_ring_sends_what_the_formula_says(chapter):
    printed = chapter.text_of("ring_runs = ")
    assert re.findall(r"✓ N = (\d)", printed) == ["2", "4", "8"]


def test_the_hub_sends_more_with_every_rank(chapter):
    assert [tuple(row.values()) for row in chapter.table_of("hub_runs = ")] == [
        ("2", "4.0 MiB", "4.0 MiB"),
        ("4", "12.0 MiB", "4.0 MiB"),
        ("8", "28.0 MiB", "4.0 MiB"),
    ]
    assert "<svg" in chapter.svg_of("axes.annotate")


def test_gloos_reduce_scatter_sends_twice_the_ideal_bytes(chapter):
    printed = chapter.text_of("ideal = ")
    times = {name: float(over) for name, over in re.findall(r"(\w+): (\d\.\d+) times", printed)}
    assert times["own_reduce_scatter"] == pytest.approx(1, abs=0.01)
    assert times["library_reduce_scatter"] == pytest.approx(2, abs=0.02)
    assert "predicted" in chapter.svg_of("traffic_map(run, predicted=ideal)")


def test_sending_first_hangs_at_any_size_and_the_cycle_is_named(chapter):
    printed = chapter.text_of("for elements in (1, length)")
    for elements in ("1", "1,048,576"):
        assert f"length {elements}: deadlock: ranks 0 → 1 → 2 → 3 → 0 all wait in send" in printed
    assert chapter.text_of("print(hang.detail)").count("dist.send(outgoing, right)") == 4
    assert "never ended" in chapter.svg_of("timeline(hang)")


@pytest.mark.parametrize("function", ["start_sending_then_receive", "take_turns"])
def test_both_ways_to_avoid_the_deadlock_finish(chapter, function):
    picture = chapter.svg_of(f"launch({function}")
    assert "8 calls on 4 ranks" in picture
    assert "never ended" not in picture


def test_the_model_is_fitted_and_tested_on_unseen_measurements(chapter):
    assert re.search(
        r"latency α = \d+ µs, bandwidth 1/β = \S+ GB/s", chapter.text_of("AlphaBeta.fit")
    )
    assert [row["ranks N"] for row in chapter.table_of("predicted_s = {")] == ["2", "4", "8"]
    assert "<svg" in chapter.svg_of("loglog")


def test_ddp_sums_all_gradients_in_fewer_calls(chapter):
    printed = chapter.text_of("launch(two_steps")
    tensors, total = re.match(r"(\d+) gradients of (\S+) MiB", printed).groups()
    rows = chapter.table_of("launch(two_steps")
    buckets = [float(row["rank 0 all-reduces"].removesuffix(" MiB")) for row in rows]
    assert buckets[0] == float(total)  # the first step: one bucket
    assert sum(buckets[1:]) == pytest.approx(float(total), abs=0.1)
    assert 1 < len(buckets[1:]) < int(tensors)


def test_predictions_are_shown_next_to_the_measurements(chapter):
    assert "predicted" in chapter.svg_of("run = launch(hub_all_reduce")
    assert "Right, within 2 %." in chapter.text_of(
        "predicted_bytes.compare(run.traffic.sent_by_rank, one"
    )
    assert "predicted" in chapter.svg_of("run = launch(all_reduce, length, world_size=4")
    answer = chapter.text_of('"one of the two halves"')
    assert "0.5 times the measured value: that is one of the two halves." in answer


@pytest.mark.browser
def test_everything_fits_in_a_small_window(lab, notebook, artifacts):
    assert_everything_fits(notebook, lab, artifacts / "chapter-03-small")


@pytest.mark.browser
def test_it_runs_without_errors(lab, notebook):
    assert notebook.errors_and_stderr() == []
    assert lab.errors == []


@pytest.mark.browser
def test_the_player_by_mouse(notebook):
    player = notebook.cell("ring_player(run)").widget("ring-player")
    press = lambda name: player.get_by_role("button", name=name).click()  # noqa: E731

    expect(player).to_have_attribute("data-step", "0")
    press("One step forward")
    expect(player).to_have_attribute("data-position", "1.00")
    press("One step back")
    expect(player).to_have_attribute("data-step", "0")
    # Both clicks in one task, so that the animation cannot finish between them.
    played = player.get_by_role("button", name="Play").evaluate(
        """(button) => {
            const root = button.closest("[data-playing]");
            const seen = [root.dataset.playing];
            for (const _ of [0, 1]) {
                button.click();
                seen.push(root.dataset.playing);
            }
            return seen;
        }"""
    )
    assert played == ["false", "true", "false"]
    press("To the end")
    expect(player).to_have_attribute("data-step", "6")
    expect(player.get_by_role("button", name="One step forward")).to_be_disabled()
    press("To the start")

    slider = player.get_by_role("slider")
    box = slider.bounding_box()
    assert box
    slider.click(position={"x": box["width"] / 2, "y": box["height"] / 2})
    expect(player).to_have_attribute("data-step", "3")


@pytest.mark.browser
def test_the_player_by_keyboard(lab, notebook):
    player = notebook.cell("ring_player(run)").widget("ring-player")
    press = lab.page.keyboard.press
    player.locator(".shardlab-plot").focus()

    press("Home")
    expect(player).to_have_attribute("data-step", "0")
    press("ArrowRight")
    expect(player).to_have_attribute("data-position", "1.00")
    expect(player.locator(".shardlab-detail")).to_contain_text("Step 1: rank")
    for key in ("End", "ArrowLeft", "Space"):
        press(key)
    expect(player).to_have_attribute("data-step", "6")  # the player stopped at the last step
    expect(player).to_have_attribute("data-playing", "false")
    assert notebook.cell("ring_player(run)").is_active(), "a key reached the notebook"


@pytest.mark.browser
def test_chunks_accumulate_the_parts_of_all_ranks(notebook):
    """Each of 4 chunks on 4 ranks starts with its own rank's mark and ends with all four."""
    player = notebook.cell("ring_player(run)").widget("ring-player")
    marks = []
    for step in range(7):
        player.get_by_role("slider").fill(str(step))
        expect(player).to_have_attribute("data-position", f"{step}.00")
        marks.append(sum(painted(player, rank_color(rank)) for rank in range(4)))
    assert marks == sorted(marks), marks
    # After reduce-scatter one chunk per rank is complete, the others are partial: 40 of 64.
    assert marks[-1] / marks[0] > 3.3, marks


@pytest.mark.browser
def test_the_map_by_mouse(lab, notebook):
    traffic = notebook.cell("run = launch(hub_all_reduce").widget("traffic-map")
    canvas = traffic.locator("canvas").bounding_box()
    assert canvas
    seen = {}
    for y in range(20, int(canvas["height"]), 50):
        for x in range(20, int(canvas["width"]), 50):
            lab.page.mouse.move(canvas["x"] + x, canvas["y"] + y)
            data = traffic.evaluate("(root) => ({ ...root.dataset })")
            if "selected" in data:
                seen[data["selected"]] = int(data["selectedBytes"])
    columns = [*map(str, range(4)), "total"]
    assert sorted(seen) == sorted(f"{row},{column}" for row in range(4) for column in columns)
    assert seen["0,1"] > 4 * 2**20 > seen["1,2"]  # the hub sends, the others do not
    assert seen["0,total"] > 12 * 2**20


@pytest.mark.browser
def test_the_map_by_keyboard(lab, notebook):
    traffic = notebook.cell("run = launch(hub_all_reduce").widget("traffic-map")
    traffic.locator(".shardlab-plot").focus()
    for key in ("Home", "ArrowRight"):
        lab.page.keyboard.press(key)
    expect(traffic).to_have_attribute("data-selected", "0,1")
    expect(traffic.locator(".shardlab-detail")).to_contain_text("rank 0 → rank 1: 4,194,")
    lab.page.keyboard.press("Escape")
    expect(traffic).not_to_have_attribute("data-selected", "0,1")


@pytest.mark.browser
def test_the_links_by_mouse_and_keyboard(lab, notebook):
    cell = notebook.cell('traffic_map(run, mode="links")')
    traffic = cell.widget("traffic-map")
    expect(traffic).to_have_attribute("data-mode", "links")
    detail = traffic.locator(".shardlab-detail")
    traffic.locator(".shardlab-plot").focus()
    for key in ("ArrowDown", "ArrowDown"):
        lab.page.keyboard.press(key)
    expect(traffic).to_have_attribute("data-selected", "0,sent,0")
    expect(detail).to_contain_text("of the link's speed")
    lab.page.keyboard.press("ArrowUp")
    expect(detail).to_contain_text("on average")
    assert cell.is_active(), "a key reached the notebook"
    traffic.get_by_role("radio", name="bytes between ranks").click()
    expect(traffic).to_have_attribute("data-mode", "ranks")
    traffic.get_by_role("radio", name="bytes between ranks").press("ArrowRight")
    expect(traffic).to_have_attribute("data-mode", "links")


@pytest.mark.browser
def test_the_hang_shows_which_rank_waits_for_which(lab, notebook):
    hang = notebook.cell("timeline(hang)").widget("timeline")
    expect(hang).to_have_attribute("data-waits", "0>1 1>2 2>3 3>0")
    expect(hang).to_have_attribute("data-pending", "4")
    expect(hang.locator(".shardlab-error")).to_contain_text("ranks 0 → 1 → 2 → 3 → 0 all wait")
    hang.locator(".shardlab-plot").focus()
    lab.page.keyboard.press("ArrowDown")
    detail = hang.locator(".shardlab-detail")
    expect(detail).to_contain_text("send → rank 1")
    expect(detail).to_contain_text("never ended")
    expect(detail).to_contain_text("dist.send(outgoing")


@pytest.mark.screenshots
@pytest.mark.browser
def test_screenshots_in_both_themes(lab, notebook, artifacts):
    def halfway():
        cell = notebook.cell("ring_player(run)")
        player = cell.widget("ring-player")
        slider = player.get_by_role("slider")
        slider.fill("1.45")
        return cell.element

    lab.screenshot_in_both_themes(
        artifacts,
        {
            "chapter-03-hub": lambda: notebook.cell("run = launch(hub_all_reduce").element,
            "chapter-03-player": halfway,
            "chapter-03-plot": lambda: notebook.cell("figsize=(7, 3.6)").element,
            "chapter-03-timeline": lambda: notebook.cell("timeline(hang)").element,
            "chapter-03-model": lambda: notebook.cell("fitted to N = 2").element,
        },
    )


def painted(widget, color):
    """The number of pixels of the widget's picture with exactly this color."""
    return int(
        widget.locator("canvas").evaluate(
            """(canvas, color) => {
              const pen = canvas.getContext("2d");
              const { data } = pen.getImageData(0, 0, canvas.width, canvas.height);
              const pixels = new Uint32Array(data.buffer); // alpha, blue, green, red
              const wanted = parseInt(`ff${color.match(/\\w\\w/g).reverse().join("")}`, 16);
              return pixels.reduce((count, pixel) => count + (pixel === wanted), 0);
            }""",
            color,
        )
    )
