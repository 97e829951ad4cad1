"""What a reader does with a widget."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Locator

Show = Callable[..., Locator]  # the fixture of conftest.py: a widget, put on a page


def press(root: Locator, *keys: str) -> None:
    root.locator(".shardlab-plot").focus()
    for key in keys:
        root.page.keyboard.press(key)


def hover(root: Locator, x: float, y: float) -> None:
    """Point at a place of the scene (its own pixels)."""
    root.locator("canvas").hover(position={"x": x, "y": y})


def stop_the_clock(root: Locator) -> None:
    """From now on the page's time passes by `root.page.clock.run_for(ms)` alone."""
    root.page.clock.install(time=1)
    root.page.clock.pause_at(2)
