"""JupyterLab as a student uses it: notebooks, cells, outputs, themes.

Clicks and keys go through the page. Waiting is based on the state of JupyterLab's own models (a
running cell, a busy kernel), never on a fixed time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from playwright.sync_api import Error, Locator, Page, expect

from tests.running_lab import LabServer

RUN_LIMIT_MS = 240_000  # a whole chapter, on a busy machine
POLL_MS = 100  # the default, every frame, would make the page redraw constantly
_NOT_FOUND = "Error displaying widget: model not found"
LIGHT, DARK = "JupyterLab Light", "JupyterLab Dark"

# JavaScript helpers that all queries below use.
_HELPERS = """
window.course = {
  panel: (id) => [...jupyterapp.shell.widgets("main")].find((widget) => widget.id === id),
  code: (id) =>
    course.panel(id).content.widgets.filter(
      ({ model }) => model.type === "code" && model.sharedModel.getSource().trim(),
    ),
  find(id, words) {
    const models = course.panel(id).content.widgets.map((cell) => cell.model);
    const where = (fits) => models.flatMap((model, index) => (fits(model) ? [index] : []));
    const named = where((model) => model.id === words);
    return named.length ? named : where((model) => model.sharedModel.getSource().includes(words));
  },
  isDone: ({ model }) => model.executionState !== "running" && model.executionCount !== null,
  isIdle: (panel) => panel.sessionContext.session?.kernel?.status === "idle",
  failed: ({ model }) => model.outputs.toJSON().some((out) => out.output_type === "error"),
  hasFocus(panel, index) {
    const { activeElement } = document;
    const { node } = panel.content.widgets[index];
    const inside = activeElement === node || activeElement?.matches(".cm-content");
    return panel.content.activeCellIndex === index && inside && node.contains(activeElement);
  },
};
"""
# A blinking cursor makes the page redraw every frame, which uses a tenth of a core.
_STEADY_CURSOR = """
const steady = new CSSStyleSheet();
steady.replaceSync(".cm-cursorLayer { animation: none !important }");
document.adoptedStyleSheets.push(steady);
"""


class JupyterLab:
    """One page with JupyterLab in it.

    takes_screenshots: whether to take screenshots for review, a third of the time of some tests.
    """

    def __init__(self, page: Page, server: LabServer, takes_screenshots: bool) -> None:
        self.page, self.server, self.takes_screenshots = page, server, takes_screenshots
        self.errors: list[str] = []  # uncaught exceptions in the page
        page.on("pageerror", self._note)
        page.add_init_script(_HELPERS)
        page.add_init_script(_STEADY_CURSOR)

    def _note(self, error: Error) -> None:
        # JupyterLab itself raises this if a notebook is closed before it is fully drawn.
        if "_runOnIdleTime" not in (error.stack or ""):
            self.errors.append(error.stack or error.message)

    def visit(self, path: str = "") -> None:
        """Reload the page, without the tabs that were open before."""
        place = f"/lab/tree/{path}" if path else "/lab"
        self.page.goto(self.server.url_of(place) + "&reset")
        self.page.wait_for_function("window.jupyterapp?.restored.then(() => true)")

    def open(self, path: str) -> Notebook:
        """Open a notebook, like a double click in the file browser."""
        panel = self.page.evaluate(
            """async (path) => {
              const panel = await jupyterapp.commands.execute("docmanager:open", { path });
              await Promise.all([panel.revealed, panel.context.ready, panel.sessionContext.ready]);
              return panel.id;
            }""",
            path,
        )
        return self._ready(panel)

    def current(self) -> Notebook:
        """The notebook in the foreground."""
        panel = self.page.wait_for_function(
            """() => {
              const widget = window.jupyterapp?.shell.currentWidget;
              return widget?.sessionContext && widget.id;
            }"""
        )
        return self._ready(panel.json_value())

    def _ready(self, panel: str) -> Notebook:
        notebook = Notebook(self, panel)
        notebook.evaluate("(panel) => panel.context.ready.then(() => panel.sessionContext.ready)")
        notebook.wait("course.isIdle")
        return notebook

    def command(self, name: str, **arguments: Any) -> None:
        """Run a JupyterLab command, like the command palette, and wait for it."""
        self.page.evaluate(
            "async ([name, args]) => void await jupyterapp.commands.execute(name, args)",
            [name, arguments],
        )

    def menu(self, *labels: str) -> None:
        """Choose a menu item."""
        self.page.get_by_role("menuitem", name=labels[0], exact=True).click()
        for label in labels[1:]:
            self.page.locator(".lm-Menu-itemLabel", has_text=label).first.click()

    def theme(self) -> str:
        return str(self.page.evaluate("document.body.dataset.jpThemeName"))

    def set_theme(self, theme: str) -> None:
        self.command("apputils:change-theme", theme=theme)
        self.page.locator("#jupyterlab-splash").wait_for(state="detached")
        self.page.wait_for_function(
            "theme => document.body.dataset.jpThemeName === theme", arg=theme
        )
        self.settle()

    def settle(self) -> None:
        """Wait until the latest changes are painted."""
        self.page.evaluate(
            "() => new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))"
        )

    def screenshot_in_both_themes(
        self, folder: Path, views: dict[str, Callable[[], Locator]], *, always: bool = False
    ) -> None:
        """Screenshots of the views in both themes: `name-dark.png` and `name-light.png`.

        always: even without --screenshots.
        """
        if not (always or self.takes_screenshots):
            return
        # The current theme first: changing it redraws the whole page.
        themes = {LIGHT: "light", DARK: "dark"}
        for theme, suffix in sorted(themes.items(), key=lambda each: each[0] != self.theme()):
            self.set_theme(theme)
            self.page.mouse.move(0, 0)  # nothing is hovered over
            for name, view in views.items():
                shown = view()
                shown.scroll_into_view_if_needed()
                self.settle()
                shown.screenshot(path=folder / f"{name}-{suffix}.png")


@dataclass(frozen=True)
class Notebook:
    """An open notebook. `panel` is the id of its tab's content in the page."""

    lab: JupyterLab
    panel: str

    @property
    def page(self) -> Page:
        return self.lab.page

    @property
    def root(self) -> Locator:
        return self.page.locator(f"[id='{self.panel}']")

    def evaluate(self, function: str, *arguments: Any) -> Any:
        """The result of a JavaScript function of this panel (and arguments)."""
        return self.page.evaluate(
            f"([id, ...rest]) => ({function})(course.panel(id), ...rest)", [self.panel, *arguments]
        )

    def wait(self, condition: str, *arguments: Any) -> None:
        """Wait until a JavaScript function of this panel (and arguments) is true."""
        self.page.wait_for_function(
            f"([id, ...rest]) => ({condition})(course.panel(id), ...rest)",
            arg=[self.panel, *arguments],
            timeout=RUN_LIMIT_MS,
            polling=POLL_MS,
        )

    def cell(self, words: str) -> Cell:
        """The only cell with this id, or else the only one whose source contains these words."""
        found: list[int] = self.evaluate("(panel, words) => course.find(panel.id, words)", words)
        assert len(found) == 1, f"{len(found)} cells contain {words!r}"
        return Cell(self, found[0])

    def cells(self) -> list[Cell]:
        """All code cells that are not empty."""
        indices: list[int] = self.evaluate(
            "(panel) => course.code(panel.id).map((cell) => panel.content.widgets.indexOf(cell))"
        )
        return [Cell(self, index) for index in indices]

    def run_all(self) -> None:
        """Run > Run All Cells; returns when all have run, or after the first error."""
        self.lab.menu("Run", "Run All Cells")
        self.wait(
            """(panel) => course.code(panel.id).every(course.isDone) ||
              (course.code(panel.id).some(course.failed) && course.isIdle(panel))"""
        )

    def errors_and_stderr(self) -> list[str]:
        """Errors and stderr output of the whole notebook."""
        return [
            f"cell {cell.index}: {output.get('evalue') or _joined(output['text'])}"
            for cell in self.cells()
            for output in cell.outputs()
            if output["output_type"] == "error" or output.get("name") == "stderr"
        ]

    def content(self) -> NotebookNode:
        """Its cells with their outputs, as they would be saved."""
        return nbformat.from_dict(self.evaluate("(panel) => panel.content.model.toJSON()"))

    @property
    def path(self) -> str:
        """Relative to the folder that the server serves."""
        return str(self.evaluate("(panel) => panel.context.path"))

    def kernel_id(self) -> str:
        return str(self.evaluate("(panel) => panel.sessionContext.session.kernel.id"))

    def save(self) -> None:
        self.evaluate("(panel) => panel.context.save()")

    def close(self) -> None:
        """Shut down its kernel, discard unsaved changes, close its tab."""
        self.evaluate(
            """async (panel) => {
              await panel.sessionContext.shutdown();
              panel.context.model.dirty = false; // or a dialog asks what to do with them
              panel.close();
            }"""
        )


@dataclass(frozen=True)
class Cell:
    notebook: Notebook
    index: int

    @property
    def element(self) -> Locator:
        """Its element on the page, scrolled into view: JupyterLab draws only visible cells.

        Scrolls again if cells drawn above have pushed it out of view.
        """
        element = self.notebook.root.locator(f".jp-Cell[data-windowed-list-index='{self.index}']")
        for _ in range(12):
            self.notebook.evaluate(
                "(panel, index) => panel.content.scrollToItem(index, 'smart')", self.index
            )
            with contextlib.suppress(Error):
                element.scroll_into_view_if_needed(timeout=5_000)
                return element
        raise AssertionError(f"cell {self.index} is not drawn")

    @property
    def output(self) -> Locator:
        return self.element.locator(".jp-Cell-outputArea")

    def widget(self, name: str = "") -> Locator:
        """The widget in this cell's output. name: the kind of widget.

        Scrolls again if pictures drawn above have pushed it out of view.
        """
        kind = f"[data-widget='{name}']" if name else ""
        for _ in range(18):
            found = self.element.locator(f".shardlab-widget{kind}")
            with contextlib.suppress(AssertionError, Error):  # Error: redrawn in between
                expect(found).to_have_count(1, timeout=5_000)
                found.scroll_into_view_if_needed()
                return found
            if _NOT_FOUND in (self.output.text_content() or ""):
                self._redraw_outputs()
        shown = self.output.inner_html()[:2_000]
        raise AssertionError(f"cell {self.index} shows {found.count()} pictures, not one: {shown}")

    def _redraw_outputs(self) -> None:
        """As if the notebook were reopened. The page itself tries five times (retry.js).

        A widget waits two seconds for its saved state. If the page is busy at the end of that
        time, the widget manager reports a missing model even if it has just been loaded (get_model
        in @jupyter-widgets/base looks for it before the wait, but not after).
        """
        self.notebook.evaluate(
            """(panel, index) => {
              const { outputs } = panel.content.widgets[index].model;
              outputs.fromJSON(outputs.toJSON());
            }""",
            self.index,
        )

    def outputs(self) -> list[dict[str, Any]]:
        """Its outputs as they would be saved."""
        saved: list[dict[str, Any]] = self.notebook.evaluate(
            "(panel, index) => panel.content.widgets[index].model.outputs.toJSON()", self.index
        )
        return saved

    def text(self) -> str:
        """All its outputs as plain text, visible or not."""
        parts = []
        for output in self.outputs():
            if output["output_type"] == "stream":
                parts.append(_joined(output["text"]))
            elif output["output_type"] == "error":
                parts.append(f"{output['ename']}: {output['evalue']}")
            else:
                parts.append(_joined(output["data"].get("text/plain", "")))
        return "\n".join(parts)

    def is_active(self) -> bool:
        """Whether it is the notebook's active cell."""
        return bool(
            self.notebook.evaluate(
                "(panel, index) => panel.content.activeCellIndex === index", self.index
            )
        )

    def type(self, source: str) -> None:
        """Replace the source as a user does: click into the editor, select all, type."""
        page = self.notebook.page
        self.element.locator(".cm-content").click()
        page.keyboard.press("ControlOrMeta+a")
        page.keyboard.insert_text(source)
        self.notebook.wait(
            """(panel, index, source) =>
              panel.content.widgets[index].model.sharedModel.getSource() === source""",
            self.index,
            source,
        )

    def start(self) -> None:
        """Press Shift + Enter in it, without waiting.

        Clicks into it first unless it already has the focus, since JupyterLab visits all cells
        whenever the active one changes.
        """
        if not self.notebook.evaluate("course.hasFocus", self.index):
            self.element.locator(".cm-content").click()
        self.notebook.evaluate(
            "(panel, index) => void (panel.content.widgets[index].model.executionCount = null)",
            self.index,
        )
        self.notebook.page.keyboard.press("Shift+Enter")

    def finish(self) -> None:
        """Wait until it has finished running."""
        self.notebook.wait(
            "(panel, index) => course.isDone(panel.content.widgets[index])", self.index
        )

    def run(self) -> Cell:
        self.start()
        self.finish()
        return self


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)
