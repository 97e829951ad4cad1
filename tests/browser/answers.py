"""A student's steps in a lab: type an answer and run its check."""

from __future__ import annotations

from playwright.sync_api import Locator, expect

from tests.browser.jupyterlab import Cell, Notebook


def answer(notebook: Notebook, name: str, source: str) -> Locator:
    """Type an answer, run it and its check. Returns the check's table."""
    cell = notebook.cell(name)
    cell.type(source)
    cell.run()
    return table(notebook.cell(f"check_{name}").run())


def table(check: Cell) -> Locator:
    shown = check.element.locator(".shardlab-check[data-passed]")
    expect(shown).to_have_count(1)
    return shown
