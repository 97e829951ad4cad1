"""A bare page with one widget on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page

from shardlab.widgets.picture import Picture
from tests.shardlab.widgets.harness import page_for
from tests.shardlab.widgets.interaction import Show


@pytest.fixture
def show(browser: Browser) -> Iterator[Show]:
    """Put a widget on a page and return its root. Fails on any error in the browser's console."""
    pages: list[Page] = []
    errors: list[str] = []

    def show(widget: Picture, *, dark: bool = False, reduced_motion: bool = False) -> Locator:
        page = browser.new_page(
            viewport={"width": 940, "height": 800},
            reduced_motion="reduce" if reduced_motion else "no-preference",
        )
        pages.append(page)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
        page.set_content(page_for(widget, dark=dark))
        page.wait_for_selector("body[data-ready]")
        root = page.locator(".shardlab-widget")
        return root

    yield show
    for page in pages:
        page.close()
    assert not errors
