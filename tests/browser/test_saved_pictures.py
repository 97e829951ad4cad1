"""All widgets and a plot in a notebook as JupyterLab saves it, without widget state."""

from __future__ import annotations

import re
import uuid
from typing import Any

import matplotlib.pyplot as plt
import nbformat
import pytest
from nbconvert import HTMLExporter
from nbformat import NotebookNode
from nbformat.sign import NotebookNotary
from nbformat.v4 import new_code_cell, new_notebook, new_output
from playwright.sync_api import expect

from shardlab.widgets import plots
from shardlab.widgets.picture import Picture
from tests.browser.accessibility import serious_findings
from tests.browser.jupyterlab import JupyterLab
from tests.browser.notebooks import write_scratch
from tests.shardlab.widgets.every_widget import EVERY_WIDGET

pytestmark = pytest.mark.browser

VIEW = "application/vnd.jupyter.widget-view+json"
PICTURES = tuple(draw() for draw in EVERY_WIDGET.values())
PLOT = "Plot. seconds over ranks"
# Whether the picture's background has this color.
HAS_CARD = """([image, color]) => {
  const pen = document.createElement("canvas").getContext("2d");
  pen.drawImage(image, 0, 0);
  return String([...pen.getImageData(20, 6, 1, 1).data].slice(0, 3)) === color;
}"""


def outputs_of(picture: Picture) -> list[NotebookNode]:
    """The outputs of a cell in a frontend that can show live widgets."""
    static: dict[str, Any] = picture._repr_mimebundle_()[0]
    live = {VIEW: {"version_major": 2, "version_minor": 0, "model_id": uuid.uuid4().hex}}
    return [new_output("display_data", data) for data in (static, live)]


def plot_output() -> NotebookNode:
    figure, axes = plt.subplots()
    axes.set(xlabel="ranks", ylabel="seconds")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "frontend_can_draw", lambda: True)
        html = plots.page_html(figure)
    plt.close(figure)
    return new_output("display_data", {"text/html": html})


@pytest.fixture(scope="module")
def saved() -> NotebookNode:
    """A notebook with all pictures in one cell: JupyterLab draws only cells that are in view."""
    outputs = [output for picture in PICTURES for output in outputs_of(picture)]
    outputs.append(plot_output())
    kernel = {"name": "python3", "display_name": "Python 3"}
    return new_notebook(
        cells=[new_code_cell("pictures", execution_count=1, outputs=outputs)],
        metadata={"kernelspec": kernel},
    )


@pytest.mark.parametrize(
    ("place", "trusted"), [("lab/tree", True), ("notebooks", True), ("notebooks", False)]
)
def test_each_widget_shows_its_static_picture_and_no_error(
    lab: JupyterLab, saved: NotebookNode, place: str, trusted: bool
) -> None:
    page, server = lab.page, lab.server
    path = server.root / f"saved-{'trusted' if trusted else 'untrusted'}.ipynb"
    nbformat.write(saved, path)
    if trusted:
        notary = NotebookNotary(data_dir=str(server.home / ".local/share/jupyter"))
        notary.sign(nbformat.read(path, as_version=4))
    page.goto(server.url_of(f"/{place}/{path.name}") + "&reset")
    expect(page.locator("img.shardlab-static")).to_have_count(len(PICTURES))
    if trusted:  # only then does JupyterLab look for live widgets, in vain
        missing = page.get_by_text("Error displaying widget: model not found")
        expect(missing).to_have_count(len(PICTURES))
        assert not any(error.is_visible() for error in missing.all())
        said = page.locator("img.shardlab-static").evaluate_all(
            """images => images.map((image) => {
              const output = image.closest(".jp-OutputArea-output");
              return getComputedStyle(output, "::after").content;
            })"""
        )
        assert len(said) == len(PICTURES)
        assert all("run this cell" in words for words in said), said
        for light, card in (("true", "255,255,255"), ("false", "17,17,17")):
            page.evaluate("light => document.body.dataset.jpThemeLight = light", light)
            image = page.locator("img.shardlab-static").first.element_handle()
            page.wait_for_function(HAS_CARD, arg=[image, card])
    for picture, image in zip(PICTURES, page.locator("img.shardlab-static").all(), strict=True):
        assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") > 300
        expect(image).to_be_visible()
        assert picture.alternative() in (image.get_attribute("alt") or "")
    plot = page.get_by_role("img", name=PLOT)  # only visible ones are found
    expect(plot).to_have_count(1)
    assert plot.evaluate("plot => plot.clientWidth") > 300
    assert serious_findings(page, ".jp-OutputArea") == []


def test_nbconvert_shows_all_static_pictures(saved: NotebookNode) -> None:
    html, _ = HTMLExporter().from_notebook_node(saved)
    assert html.count('src="data:image/svg+xml;base64,') == len(PICTURES)
    assert f'aria-label="{PLOT}"' in html


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: type(picture).__name__)
def test_the_text_alternative_of_a_picture_contains_its_values(picture: Picture) -> None:
    values = re.findall(r"\d[\d.,]* ?(?:[KMG]i?B|bytes|B|µs|ms|s|%)", picture.alternative())
    assert values, picture.alternative()


def test_a_live_picture_that_comes_late_is_tried_again(loaded_lab: JupyterLab) -> None:
    """jupyter-widgets waits two seconds for it, then writes this in its place."""
    source = "from shardlab.widgets import pipeline_schedule\npipeline_schedule()"
    path = write_scratch(loaded_lab.server.root / "late.ipynb", source)
    notebook = loaded_lab.open(path.name)
    live = notebook.cell("cell-1").run().widget("pipeline-schedule")
    words = "Error displaying widget: model not found"
    live.evaluate(
        "(node, words) => node.closest('.jp-OutputArea-output').textContent = words", words
    )
    expect(live).to_have_count(0)
    expect(live).to_be_visible()
    notebook.close()
