"""The widgets' base class: a live view in the browser, or a static picture without one."""

from __future__ import annotations

import re
from base64 import b64encode
from html import escape
from pathlib import Path
from typing import Any, ClassVar

import anywidget
import traitlets
from IPython import get_ipython
from IPython.display import DisplayHandle, display

_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
SHARED = ("units.js", "common.js", "controls.js", "canvas.js")
NAMED_RANKS = 8  # with more, a text alternative would be too long
SVG_IN_URL = "data:image/svg+xml;base64,"
# In JupyterLab and Notebook 7, a cell's outputs are siblings. The static picture is hidden once the
# live one after it has been drawn; if there is no live one, JupyterLab's error message is hidden,
# and a line below the picture says how to get one.
# color-scheme is all that an SVG in an <img> knows of its page. An answer that has no guess yet is
# not seen while its live picture, which hides it, is loading.
_SHOW_ONE = """<style>
.shardlab-static { color-scheme: light; }
[data-jp-theme-light="false"] .shardlab-static { color-scheme: dark; }
.jp-OutputArea-child:has(> * .shardlab-static):has(+ * .shardlab-widget) { display: none; }
.jp-OutputArea-child:has(> * .shardlab-static) + * > .jp-OutputArea-output:not(:has(*)) {
  display: none; }
.jp-NotebookPanel .jp-OutputArea-child:has(+ *):not(:has(+ * .shardlab-widget))
  > .jp-OutputArea-output:has(.shardlab-static)::after {
  content: "Saved picture. To play with it, run this cell."; display: block; margin: 2px 0 8px;
  font: 12px var(--jp-ui-font-family, sans-serif); color: var(--jp-content-font-color2);
  animation: shardlab-answer 3s step-end; }
.shardlab-answer { animation: shardlab-answer 3s step-end; }
@keyframes shardlab-answer { from { visibility: hidden; } }
</style>"""


def asset(name: str) -> str:
    """The text of a file in this folder."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def module(*names: str) -> str:
    """A widget's JavaScript as one ES module: the shared files, then its own."""
    return "\n".join(asset(name) for name in (*SHARED, *names))


def _reference(prediction: Picture | None, _: object) -> str | None:
    """The form that anywidget's `host.getModel` takes."""
    return None if prediction is None else f"anywidget:{prediction.model_id}"


class Picture(anywidget.AnyWidget):
    """A widget whose ``scene`` is all that the browser needs, so it never asks the kernel.

    A live picture with a ``prediction`` is hidden until the reader commits a guess or asks for it.
    """

    scene = traitlets.Dict().tag(sync=True)
    # The prediction whose answer it shows, if any: see widget() in common.js.
    # Not anywidget's WidgetTrait, which needs a browser.
    prediction = traitlets.Any(None, allow_none=True).tag(sync=True, to_json=_reference)
    _css: ClassVar[str] = asset("widgets.css")
    _shown: DisplayHandle | None = None

    def static_svg(self) -> str:
        """The same picture as a static SVG document, for pages without a kernel."""
        raise NotImplementedError

    def summary(self) -> str:
        """The picture in one line of text."""
        raise NotImplementedError

    def alternative(self) -> str:
        """What a screen reader reads instead of the picture: its values, in a few sentences."""
        return self.summary()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary()}>"

    def open(self) -> None:
        """Connect to the browser if there is one: see `frontend_can_draw`."""
        if frontend_can_draw():
            super().open()

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The static picture. A notebook shows it as HTML, which has a text alternative."""
        svg = self.static_svg()
        source = SVG_IN_URL + b64encode(svg.encode()).decode()
        kind = re.sub("(?<=[a-z])([A-Z])", r" \1", type(self).__name__).capitalize()
        words = escape(f"{kind}: {self.alternative()}")
        answers = self.prediction is not None and self.prediction.value is None
        classes = "shardlab-static shardlab-answer" if answers else "shardlab-static"
        image = f'<img class="{classes}" alt="{words}" src="{source}">'
        data = {
            "text/plain": repr(self),
            "text/html": image + _SHOW_ONE,
            "image/svg+xml": svg,
        }
        return data, {}

    def _ipython_display_(self) -> None:
        """Show the static picture or, where possible, the live one in its place.

        There are two outputs, because JupyterLab would save a single one without its picture: it
        does not save the state of widgets, and shows "model not found" for them when the notebook
        is reopened. So does nbconvert, which also loads a widget's code from the internet.
        """
        self._shown = display(self._repr_mimebundle_()[0], raw=True, display_id=True)
        if self.comm is not None:
            view = {"version_major": 2, "version_minor": 0, "model_id": self.model_id}
            display({_WIDGET_VIEW: view}, raw=True)

    def refresh(self, _: object = None) -> None:
        """Redraw the static picture where it is shown, so that its current state is saved."""
        if self._shown is not None:
            self._shown.update(self._repr_mimebundle_()[0], raw=True)


class Adjustable(Picture):
    """A picture whose controls change its ``settings``. Code may read them, and set some or all."""

    settings = traitlets.Dict().tag(sync=True)

    def check(self, settings: dict[str, Any]) -> None:
        """Raises ValueError for impossible settings."""
        raise NotImplementedError

    @traitlets.validate("settings")
    def _validate(self, proposal: dict[str, Any]) -> dict[str, Any]:
        settings = {**self.settings, **proposal["value"]}
        try:
            self.check(settings)
        except ValueError as error:
            raise traitlets.TraitError(str(error)) from error
        return settings


def frontend_can_draw() -> bool:
    """Whether the running cell was sent by a notebook that can show a live widget.

    nbclient (and thus nbconvert and nbgrader) and consoles cannot, and their requests have no cell
    id. This matters because nbconvert would prefer the live view and fetch its code from a CDN:
    offline, the page would be empty. The widget's state would also bloat the notebook.
    """
    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        return False
    parent = kernel.get_parent()
    is_cell = parent.get("header", {}).get("msg_type") == "execute_request"
    return not is_cell or "cellId" in parent.get("metadata", {})
