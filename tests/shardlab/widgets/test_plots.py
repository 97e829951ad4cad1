"""A plot in a notebook follows the page's theme and the cell's width."""

from xml.etree import ElementTree

import matplotlib.pyplot as plt
import pytest

from autograder.pages.html import inert
from shardlab.display import palette
from shardlab.widgets import plots


@pytest.fixture
def figure(monkeypatch):
    monkeypatch.setattr(plots, "frontend_can_draw", lambda: True)
    with plt.style.context(palette.PLOT_STYLE):
        figure, axes = plt.subplots()
        axes.plot([2, 4, 8], [0.25, 0.5, 3])
        axes.set(xlabel="ranks", ylabel="bytes < 9", title="sent")
        yield figure
        plt.close(figure)


def test_text_and_axes_have_the_pages_color(figure) -> None:
    svg = plots.page_html(figure)
    ElementTree.fromstring(svg)
    assert palette.PLOT_INK not in svg.replace(f", {palette.PLOT_INK})", "")
    assert "fill: var(--jp-content-font-color2" in svg
    assert "max-width:100%" in svg.split(">")[0]


def test_labels_are_svg_text_and_describe_the_plot(figure) -> None:
    root = ElementTree.fromstring(plots.page_html(figure))
    assert root.get("aria-label") == "Plot. sent: bytes < 9 (0.25 to 3) over ranks (2 to 8)"
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"sent", "ranks", "bytes < 9"} <= set(texts)


def test_feedback_and_pages_without_a_kernel_show_an_image_with_alternative_text(
    figure, monkeypatch
) -> None:
    monkeypatch.setattr(plots, "frontend_can_draw", lambda: False)
    html = plots.page_html(figure)
    for shown in (html, inert.html(html)):
        assert 'alt="Plot. sent: bytes &lt; 9 (0.25 to 3) over ranks (2 to 8)"' in shown
        assert 'src="data:image/svg+xml;base64,' in shown


def test_the_description_lists_category_labels_and_ranges(figure) -> None:
    by_name, by_rank, empty = figure.subplots(3, 1)
    by_name.barh(["swap", "offload"], [12, 2])
    by_name.set(xlabel="bytes", ylabel="method")
    by_rank.bar(range(4), [5, 1, 1, 1])
    by_rank.set(xlabel="rank", ylabel="copies", xticks=range(4))
    empty.set(ylabel="nothing yet")
    assert plots.description(figure).split("; ")[1:] == [
        "method (swap, offload) over bytes (0 to 12)",
        "copies (0 to 5) over rank (0 to 3)",
        "nothing yet",
    ]
