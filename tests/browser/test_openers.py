"""What plays on the front page and at the top of a chapter before any code has run."""

from __future__ import annotations

import re
from collections.abc import Iterator

import nbformat
import pytest
from playwright.sync_api import Locator, expect

from tests.browser.jupyterlab import DARK, LIGHT, JupyterLab, Notebook

pytestmark = pytest.mark.browser
EVIL = "onload='window.bad = 1' onclick='window.bad = 1'"
COVERED = """(plot) => {
  const [cover, all] = [".cover", "svg"].map((name) => plot.shadowRoot.querySelector(name));
  return cover.getBoundingClientRect().width / all.getBoundingClientRect().width;
}"""


@pytest.fixture
def chapter(loaded_lab: JupyterLab) -> Iterator[Notebook]:
    notebook = loaded_lab.open("course/chapters/03_ring_all_reduce.ipynb")
    yield notebook
    notebook.close()
    assert loaded_lab.errors == []


@pytest.fixture
def front_page(loaded_lab: JupyterLab) -> Iterator[Notebook]:
    notebook = loaded_lab.open("course/front_page.ipynb")
    yield notebook
    notebook.close()
    assert loaded_lab.errors == []


def opener_in(notebook: Notebook) -> Locator:
    return notebook.cell("<details open>").element.locator("[data-widget='opener']")


def covered(opener: Locator) -> float:
    """The share of the picture that the cursor has not reached."""
    share: float = opener.locator(".shardlab-plot").evaluate(COVERED)
    return share


def test_an_opener_plays_once_when_it_is_seen(chapter: Notebook) -> None:
    opener = opener_in(chapter)
    expect(opener).to_have_attribute("data-at-ms", "5000")
    expect(opener).to_have_attribute("data-playing", "false")
    assert covered(opener) == 0


def test_an_opener_is_played_paused_and_stepped_where_it_stands(chapter: Notebook) -> None:
    opener, pages = opener_in(chapter), len(chapter.page.context.pages)
    button = lambda name: opener.get_by_role("button", name=name)  # noqa: E731
    button("Play").click()
    expect(opener).to_have_attribute("data-playing", "true")
    button("Pause").click()
    expect(opener).to_have_attribute("data-playing", "false")
    button("To the start").click()
    assert covered(opener) > 0.7
    moments = []
    for _ in range(3):
        button("One step forward").click()
        moments.append(int(opener.get_attribute("data-at-ms") or 0))
    assert 0 < moments[0] < moments[1] < moments[2] < 5_000
    button("One step back").click()
    expect(opener).to_have_attribute("data-at-ms", str(moments[1]))
    opener.get_by_role("slider").fill("2500")
    assert 0.3 < covered(opener) < 0.5
    opener.locator(".shardlab-plot").press("End")
    assert covered(opener) == 0
    assert len(chapter.page.context.pages) == pages
    assert chapter.content().cells[1].source.startswith("<details open>")


def test_an_opener_follows_the_theme(chapter: Notebook) -> None:
    opener = opener_in(chapter).locator(".shardlab-plot")
    card = "(plot) => getComputedStyle(plot.shadowRoot.querySelector('rect')).fill"
    colors = {}
    for theme in (DARK, LIGHT):
        chapter.lab.set_theme(theme)
        colors[theme] = opener.evaluate(card)
    assert colors == {LIGHT: "rgb(255, 255, 255)", DARK: "rgb(17, 17, 17)"}


def test_a_picture_from_elsewhere_runs_nothing(loaded_lab: JupyterLab) -> None:
    """Any notebook may name a file in a folder of this name."""
    folder = loaded_lab.server.root / "course/chapters/openers"
    evil = (folder / "03_ring_all_reduce.svg").read_text().replace("<svg ", f"<svg {EVIL} ", 1)
    inside = f"<script>window.bad = 1</script><a href='x'/><foreignObject {EVIL}/><path {EVIL}/>"
    (folder / "evil.svg").write_text(evil.replace("</svg>", f"{inside}</svg>"))
    cell = nbformat.v4.new_markdown_cell("![evil](course/chapters/openers/evil.svg)")
    path = loaded_lab.server.root / "evil.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    notebook = loaded_lab.open(path.name)
    opener = notebook.cell("evil").element.locator("[data-widget='opener']")
    opener.click()
    opener.hover()
    html = opener.locator(".shardlab-plot").evaluate("(plot) => plot.shadowRoot.innerHTML")
    assert not re.search("<script|<a |foreignObject|onload|onclick|href", html, re.IGNORECASE)
    assert notebook.page.evaluate("window.bad") is None
    notebook.close()


def test_the_front_page_takes_a_drawn_guess_and_shows_the_measured_run(
    front_page: Notebook,
) -> None:
    cell = front_page.cell("How many bytes does each of them send?")
    first = cell.element.locator(".jp-RenderedMarkdown")
    expect(first.locator("[data-widget='opener']")).to_be_visible()
    expect(first.get_by_text("The measured run")).to_have_count(0)  # not one click away
    question = first.locator("[data-widget='prediction']")
    expect(first.locator("[data-widget='comparison']")).to_have_attribute("data-state", "waiting")
    plot = question.locator(".shardlab-plot canvas")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    mouse = front_page.page.mouse
    mouse.move(box["x"] + box["width"] * 0.15, middle)
    mouse.down()
    mouse.move(box["x"] + box["width"] * 0.98, middle, steps=12)
    mouse.up()
    drawn = [field.input_value() for field in question.get_by_role("textbox").all()]
    assert len(drawn) == 4
    assert all(re.fullmatch(r"[1-9][\d.]* MiB", each) for each in drawn)
    for field in question.get_by_role("textbox").all():
        field.fill("4 MiB")
    question.get_by_role("button", name="Commit").click()
    answer = first.locator("[data-widget='comparison']")
    expect(answer).to_contain_text("the whole tensor once")
    expect(answer.get_by_role("img")).to_have_accessible_name(re.compile("measured.*6.0 MiB"))
