"""Each chapter opens with an animation of a recorded run, which needs no kernel."""

from collections import Counter
from xml.etree import ElementTree

import jupytext
import pytest

from tests.conftest import new_page
from tools import openers
from tools.javascript import page_module
from tools.openers import live
from tools.openers.__main__ import CHAPTERS

NAMES = sorted(path.name.removesuffix(".nb.py") for path in CHAPTERS.glob("*.nb.py"))
MAX_BYTES = 60_000
REFRESH = "run `python -m tools.openers`"


@pytest.mark.parametrize("name", NAMES)
def test_the_cell_after_the_title_shows_the_opener(name):
    cell = jupytext.read(CHAPTERS / f"{name}.nb.py").cells[1]
    assert cell.source == openers.cell(name, openers.load(name))


@pytest.mark.parametrize("name", NAMES)
def test_the_picture_is_drawn_from_the_recorded_data(name):
    svg = openers.draw(openers.load(name))
    assert (CHAPTERS / f"openers/{name}.svg").read_text(encoding="utf-8") == svg, REFRESH
    assert len(svg.encode()) < MAX_BYTES
    ElementTree.fromstring(svg)


@pytest.mark.parametrize("name", NAMES)
def test_buttons_stop_at_moments_while_it_plays(name):
    svg = ElementTree.fromstring(openers.draw(openers.load(name)))
    moments = [int(each) for each in svg.get("data-moments-ms").split()]
    assert moments == sorted(set(moments))
    assert 0 < moments[0] <= moments[-1] < int(svg.get("data-play-ms")) == 5_000


@pytest.mark.parametrize("path", live.files(), ids=lambda path: path.name)
def test_what_jupyterlab_loads_is_made_from_the_widgets(path):
    assert path.read_text(encoding="utf-8") == live.files()[path], REFRESH


def test_the_checked_javascript_is_what_jupyterlab_loads():
    joined = "\n".join(path.read_text() for path in page_module())
    assert (live.EXTENSION / "pages.js").read_text() == joined


@pytest.mark.ranks
def test_the_front_pages_answer_is_what_the_ring_sends(tmp_path, monkeypatch):
    stored = live.widgets()["comparison"]
    monkeypatch.setattr(live, "MEASURED", tmp_path / "bytes_sent.json")
    live.record()
    assert live.widgets()["comparison"].scene["answer"] == pytest.approx(
        stored.scene["answer"], rel=0.01
    )


@pytest.mark.parametrize("name", NAMES)
def test_marks_are_in_rows_that_exist_and_within_the_recorded_time(name):
    opener = openers.load(name)
    rows = range(len(opener.rows))
    assert opener.blocks or opener.levels
    for block in opener.blocks:
        assert block.row in rows
        assert 0 <= block.start <= block.end <= opener.end
    for message in opener.messages:
        assert {message.from_row, message.to_row} <= set(rows)
        assert 0 <= message.start <= message.end <= opener.end
    for level in opener.levels:
        assert level.row in rows
        assert list(level.times) == sorted(level.times)
        assert 0 <= level.times[0] <= level.times[-1] <= opener.end
        assert min(level.amounts) >= 0


@pytest.mark.parametrize("name", NAMES)
def test_saving_a_loaded_opener_reproduces_its_file(name, tmp_path, monkeypatch):
    stored = (openers.opener.RECORDED / f"{name}.json").read_bytes()
    opener = openers.load(name)
    monkeypatch.setattr(openers.opener, "RECORDED", tmp_path)
    openers.save(name, opener)
    assert (tmp_path / f"{name}.json").read_bytes() == stored


def test_the_ring_has_2_n_minus_1_steps_and_each_message_goes_to_the_next_rank():
    messages = openers.load("03_ring_all_reduce").messages
    steps = Counter((message.from_row, message.to_row) for message in messages)
    assert steps == {(rank, (rank + 1) % 4): 6 for rank in range(4)}


def test_each_stage_of_the_pipeline_runs_every_micro_batch_forward_and_backward():
    blocks = openers.load("09_pipeline").blocks
    seen = Counter((block.row, block.kind, block.label) for block in blocks)
    kinds = ("forward", "backward")
    assert seen == {(row, kind, str(m)): 1 for row in range(4) for kind in kinds for m in range(8)}


@pytest.mark.ranks
def test_a_recipe_still_records_what_is_stored():
    from tools.openers import recipes

    def calls(opener):
        # Whether a rank waited for another depends on the machine.
        kinds = [(block.row, block.kind) for block in opener.blocks]
        return Counter((row, kind) for row, kind in kinds if not kind.endswith(" waits"))

    stored, now = openers.load("03_ring_all_reduce"), recipes.record("03_ring_all_reduce")
    assert calls(now) == calls(stored)
    assert (now.title, now.caption, now.rows) == (stored.title, stored.caption, stored.rows)
    assert sorted(m[:2] for m in now.messages) == sorted(m[:2] for m in stored.messages)


@pytest.mark.browser
def test_it_is_animated_for_five_seconds_or_not_at_all_with_reduced_motion(browser):
    with new_page(browser) as page:
        page.goto((CHAPTERS / "openers/03_ring_all_reduce.svg").as_uri())
        covered = """(ms) => {
          for (const each of document.getAnimations()) { each.pause(); each.currentTime = ms; }
          return document.querySelector(".cover").getBoundingClientRect().width;
        }"""
        widths = [page.evaluate(covered, ms) for ms in (1_000, 3_500, 6_000, 60_000)]
        assert widths[0] > widths[1] > widths[2] == widths[3] == 0
        card = "getComputedStyle(document.querySelector('rect')).fill"
        colors = []
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            colors.append(page.evaluate(card))
        assert colors == ["rgb(255, 255, 255)", "rgb(17, 17, 17)"]
        page.emulate_media(reduced_motion="reduce")
        assert page.evaluate("document.getAnimations().length") == 0
        assert page.evaluate(covered, 0) == 0
