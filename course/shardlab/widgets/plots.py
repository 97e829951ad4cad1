"""Matplotlib's plots in the page's theme, never wider than their cell, with a text alternative.

JupyterLab shows an SVG as an image: it is cut off at the cell's edge, cannot follow the theme, and
has no text alternative. So a figure also gets an HTML form, with a description: in a notebook's
page, the same SVG as an element of the page; where there is no page with a theme (nbconvert,
nbgrader), an image.
"""

from __future__ import annotations

from base64 import b64encode
from html import escape
from math import isfinite
from typing import TYPE_CHECKING

from IPython import get_ipython

from shardlab.display.palette import PLOT_INK
from shardlab.widgets.picture import SVG_IN_URL, frontend_can_draw

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

_PAGE_INK = f"var(--jp-content-font-color2, {PLOT_INK})"


def show_in_theme() -> None:
    """From now on, figures have an HTML form in the notebook that runs this."""
    if (shell := get_ipython()) is not None:
        html = shell.display_formatter.formatters["text/html"]
        # Not for Figure: %config InlineBackend.figure_formats removes what is registered for it.
        html.for_type_by_name("matplotlib.figure", "FigureBase", page_html)


def page_html(figure: Figure) -> str:
    """The figure as an SVG element for a notebook's page, or as an image if there is no page."""
    from IPython.core.pylabtools import print_figure

    drawing = str(print_figure(figure, fmt="svg"))
    drawing = drawing[drawing.index("<svg") :]
    words = escape(description(figure))
    if not frontend_can_draw():
        return f'<img alt="{words}" src="{SVG_IN_URL}{b64encode(drawing.encode()).decode()}">'
    attributes = (
        f'class="shardlab-plot-svg" role="img" aria-label="{words}" '
        'style="max-width:100%;height:auto"'
    )
    return drawing.replace(PLOT_INK, _PAGE_INK).replace("<svg ", f"<svg {attributes} ", 1)


def description(figure: Figure) -> str:
    """The plot in words: titles and axis labels, each axis with the range of its data."""
    parts = []
    for axes in figure.axes:
        sides = (axes.yaxis, axes.dataLim.intervaly), (axes.xaxis, axes.dataLim.intervalx)
        over = [_words(axis, *data) for axis, data in sides if axis.get_label_text()]
        title = axes.get_title() or axes.get_title(loc="left")
        parts.append(": ".join(filter(None, (title, " over ".join(over)))))
    return f"Plot. {'; '.join(filter(None, parts))}"


def _words(axis: Axis, low: float, high: float) -> str:
    """An axis's label and its range: "ranks (2 to 8)", or its ticks if these are words."""
    from matplotlib.category import StrCategoryFormatter
    from matplotlib.ticker import FixedFormatter, FixedLocator

    label = axis.get_label_text().replace("\n", " ")
    if isinstance(axis.get_major_formatter(), FixedFormatter | StrCategoryFormatter):
        texts = [tick.get_text() for tick in axis.get_ticklabels()]
        return f"{label} ({', '.join(texts)})"
    ticks = axis.get_majorticklocs()
    if isinstance(axis.get_major_locator(), FixedLocator) and len(ticks):  # bars have a width
        low, high = min(ticks), max(ticks)
    return f"{label} ({low:.3g} to {high:.3g})" if isfinite(high - low) else label
