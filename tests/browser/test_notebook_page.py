"""The page around a chapter's pictures: keys, and widths."""

from __future__ import annotations

import nbformat
import pytest
from playwright.sync_api import expect

from tests.browser.jupyterlab import JupyterLab
from tests.browser.notebooks import write_scratch

pytestmark = pytest.mark.browser

QUESTION = """
from shardlab.widgets import predict
predict("How many", unit="B")
"""
LONG_LINE = f"numbers = [{', '.join(map(str, range(100)))}]"


def test_tab_after_running_a_prediction_goes_to_its_field(loaded_lab: JupyterLab) -> None:
    path = write_scratch(loaded_lab.server.root / "keys.ipynb", QUESTION, "1 + 1", "2 + 2")
    notebook = loaded_lab.open(path.name)
    question = notebook.cell("cell-1").run()
    field = question.widget("prediction").get_by_role("textbox")
    expect(field).to_be_visible()
    loaded_lab.page.keyboard.press("Tab")
    expect(field).to_be_focused()
    loaded_lab.page.keyboard.type("8")
    loaded_lab.page.keyboard.press("Enter")
    expect(question.widget("prediction")).to_have_attribute("data-value", "8")
    notebook.close()


def test_another_key_first_leaves_tab_alone(loaded_lab: JupyterLab) -> None:
    source = QUESTION.replace("many", "much")
    path = write_scratch(loaded_lab.server.root / "keys2.ipynb", source, "1 + 1", "2 + 2")
    notebook = loaded_lab.open(path.name)
    question = notebook.cell("cell-1").run()
    field = question.widget("prediction").get_by_role("textbox")
    loaded_lab.page.keyboard.press("ArrowDown")
    loaded_lab.page.keyboard.press("ArrowUp")
    loaded_lab.page.keyboard.press("Tab")
    expect(field).not_to_be_focused()
    notebook.close()


def test_code_wraps_and_text_is_about_as_wide_as_pictures(loaded_lab: JupyterLab) -> None:
    path = write_scratch(loaded_lab.server.root / "widths.ipynb", LONG_LINE)
    page = loaded_lab.page
    notebook = loaded_lab.open(path.name)
    editor = notebook.cell("cell-1").element.locator(".cm-scroller")
    for size in ((1100, 720), (1920, 1080)):
        page.set_viewport_size({"width": size[0], "height": size[1]})
        loaded_lab.settle()
        assert editor.evaluate("node => node.scrollWidth <= node.clientWidth")
        box = notebook.cell("cell-1").element.bounding_box()
        assert box is not None
        assert box["width"] <= 1040
    page.set_viewport_size({"width": 1400, "height": 1000})
    notebook.close()


def test_the_line_of_a_collapsed_cell_does_not_make_the_page_wider(loaded_lab: JupyterLab) -> None:
    path = write_scratch(loaded_lab.server.root / "collapsed.ipynb", LONG_LINE, "1 + 1")
    content = nbformat.read(path, as_version=4)
    content.cells[0].metadata["jupyter"] = {"source_hidden": True}
    nbformat.write(content, path)
    notebook = loaded_lab.open(path.name)
    expect(notebook.root.locator(".jp-PlaceholderText")).to_be_visible()
    pane = notebook.root.locator(".jp-WindowedPanel-outer")
    assert pane.evaluate("node => node.scrollWidth <= node.clientWidth")
    notebook.close()
