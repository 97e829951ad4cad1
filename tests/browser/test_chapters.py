"""A student runs the first chapter and the one on ring all-reduce, and uses their pictures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

from shardlab.widgets.palette import rank_color
from tests.browser.jupyterlab import JupyterLab, Notebook

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def chapter_00(lab: JupyterLab) -> Notebook:
    """The notebook that `make lab` opens, after Run All."""
    lab.page.goto(lab.server.url_of("/"))
    chapter = lab.current()
    chapter.run_all()
    return chapter


@pytest.fixture(scope="module")
def chapter_03(lab: JupyterLab) -> Notebook:
    chapter = lab.open("course/chapters/03_ring_all_reduce.ipynb")
    chapter.run_all()
    return chapter


class TestStartHere:
    def test_make_lab_opens_it(self, lab: JupyterLab, chapter_00: Notebook) -> None:
        assert "/lab/tree/course/chapters/00_start_here.ipynb" in lab.page.url
        assert chapter_00.path == "course/chapters/00_start_here.ipynb"

    def test_it_runs_without_errors(self, lab: JupyterLab, chapter_00: Notebook) -> None:
        assert chapter_00.complaints() == []
        assert lab.errors == []

    def test_four_ranks_say_hello(self, chapter_00: Notebook) -> None:
        text = chapter_00.cell("def hello()").output.locator(".shardlab-output").inner_text()
        ranks = re.findall(r"rank (\d) │ hello, I am rank (\d) of 4, process (\d+)", text)
        assert sorted(prefix for prefix, _, _ in ranks) == ["0", "1", "2", "3"]
        assert all(prefix == own for prefix, own, _ in ranks)
        assert len({process for _, _, process in ranks}) == 4

    def test_the_map_shows_what_the_run_counted(self, chapter_00: Notebook) -> None:
        printed = chapter_00.cell("print(run.traffic.source)").text()
        sent = [int(n.replace(",", "")) for n in re.findall(r"rank \d sent ([\d,]+)", printed)]
        assert len(sent) == 4
        assert all(2**20 < count < 1.001 * 2**20 for count in sent)

        traffic = chapter_00.cell("traffic_map(run").widget("traffic-map")
        expect(traffic).to_have_attribute("data-total-bytes", str(sum(sent)))
        expect(traffic.locator(".shardlab-sub")).to_have_text("4.0 MiB by 4 ranks")

    def test_a_prediction_is_shown_next_to_the_measurement(
        self, lab: JupyterLab, chapter_00: Notebook
    ) -> None:
        prediction = chapter_00.cell("# Your prediction")
        prediction.type("predicted_bytes = 1_000_000")
        prediction.run()
        traffic = chapter_00.cell("traffic_map(run").run().widget("traffic-map")
        traffic.locator(".shardlab-plot").focus()
        for key in ("ArrowRight", "End"):
            lab.page.keyboard.press(key)
        expect(traffic).to_have_attribute("data-selected", "0,total")
        expect(traffic.locator(".shardlab-detail")).to_contain_text("predicted 1,000,000 bytes")
        chapter_00.cell("timeline(run)").run()  # of this run, for the screenshot

    def test_screenshots_in_both_themes(
        self, lab: JupyterLab, chapter_00: Notebook, artifacts: Path
    ) -> None:
        traffic = chapter_00.cell("traffic_map(run")
        lab.photograph(
            artifacts,
            {
                "chapter-00-hello": lambda: chapter_00.cell("def hello()").element,
                "chapter-00-map": lambda: traffic.element,
                "chapter-00-timeline": lambda: chapter_00.cell("timeline(run)").element,
                "chapter-00-deadlock": lambda: chapter_00.cell("timeline(hang)").element,
                "chapter-00-page": lambda: lab.page.locator("#main"),
            },
        )
        chapter_00.close()


class TestRingAllReduce:
    def test_it_runs_without_errors(self, lab: JupyterLab, chapter_03: Notebook) -> None:
        assert chapter_03.complaints() == []
        assert lab.errors == []

    def test_the_player_by_mouse(self, chapter_03: Notebook) -> None:
        player = chapter_03.cell("ring_player(run)").widget("ring-player")
        press = lambda name: player.get_by_role("button", name=name).click()  # noqa: E731

        expect(player).to_have_attribute("data-step", "0")
        press("One step forward")
        expect(player).to_have_attribute("data-position", "1.00")
        press("One step back")
        expect(player).to_have_attribute("data-step", "0")
        # Both clicks in one task of the page, so that it cannot play to its end between them.
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

    def test_the_player_by_keyboard(self, lab: JupyterLab, chapter_03: Notebook) -> None:
        player = chapter_03.cell("ring_player(run)").widget("ring-player")
        press = lab.page.keyboard.press
        player.locator(".shardlab-plot").focus()

        press("Home")
        expect(player).to_have_attribute("data-step", "0")
        press("ArrowRight")
        expect(player).to_have_attribute("data-position", "1.00")
        expect(player.locator(".shardlab-detail")).to_contain_text("Step 1: rank")
        for key in ("End", "ArrowLeft", "Space"):
            press(key)
        expect(player).to_have_attribute("data-step", "6")  # played to its end
        expect(player).to_have_attribute("data-playing", "false")
        assert chapter_03.cell("ring_player(run)").is_active(), "a key reached the notebook"

    def test_chunks_fill_up_with_every_ranks_part(self, chapter_03: Notebook) -> None:
        """Each of 4 chunks on 4 ranks starts with its own rank's mark and ends with all four."""
        player = chapter_03.cell("ring_player(run)").widget("ring-player")
        marks = []
        for step in range(7):
            player.get_by_role("slider").fill(str(step))
            expect(player).to_have_attribute("data-position", f"{step}.00")
            marks.append(sum(painted(player, rank_color(rank)) for rank in range(4)))
        assert marks == sorted(marks), marks
        # After reduce-scatter one chunk per rank is complete, the others are partial: 40 of 64.
        assert marks[-1] / marks[0] > 3.3, marks

    def test_the_map_by_mouse(self, lab: JupyterLab, chapter_03: Notebook) -> None:
        traffic = chapter_03.cell("sum on each rank").widget("traffic-map")
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

    def test_the_map_by_keyboard(self, lab: JupyterLab, chapter_03: Notebook) -> None:
        traffic = chapter_03.cell("sum on each rank").widget("traffic-map")
        traffic.locator(".shardlab-plot").focus()
        for key in ("Home", "ArrowRight"):
            lab.page.keyboard.press(key)
        expect(traffic).to_have_attribute("data-selected", "0,1")
        expect(traffic.locator(".shardlab-detail")).to_contain_text("rank 0 → rank 1: 4,194,")
        lab.page.keyboard.press("Escape")
        expect(traffic).not_to_have_attribute("data-selected", "0,1")

    def test_the_hang_shows_which_rank_waits_for_which(
        self, lab: JupyterLab, chapter_03: Notebook
    ) -> None:
        hang = chapter_03.cell("timeline(hang)").widget("timeline")
        expect(hang).to_have_attribute("data-waits", "0>1 1>2 2>3 3>0")
        expect(hang).to_have_attribute("data-pending", "4")
        expect(hang.locator(".shardlab-error")).to_contain_text("ranks 0 → 1 → 2 → 3 → 0 all wait")
        hang.locator(".shardlab-plot").focus()
        lab.page.keyboard.press("ArrowDown")
        detail = hang.locator(".shardlab-detail")
        expect(detail).to_contain_text("send → rank 1")
        expect(detail).to_contain_text("never ended")
        expect(detail).to_contain_text("dist.send(outgoing")

    def test_screenshots_in_both_themes(
        self, lab: JupyterLab, chapter_03: Notebook, artifacts: Path
    ) -> None:
        def halfway() -> Locator:
            cell = chapter_03.cell("ring_player(run)")
            player = cell.widget("ring-player")
            slider = player.get_by_role("slider")
            slider.fill("1.45")
            return cell.element

        lab.photograph(
            artifacts,
            {
                "chapter-03-hub": lambda: chapter_03.cell("sum on each rank").element,
                "chapter-03-player": halfway,
                "chapter-03-plot": lambda: chapter_03.cell("figsize=(7, 3.6)").element,
                "chapter-03-timeline": lambda: chapter_03.cell("timeline(hang)").element,
                "chapter-03-model": lambda: chapter_03.cell("fitted to N = 2").element,
            },
        )
        chapter_03.close()


def painted(widget: Locator, color: str) -> int:
    """The number of pixels of the widget's picture with exactly this colour."""
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
