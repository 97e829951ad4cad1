"""A reader's interactions with a widget."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Locator

Show = Callable[..., Locator]  # the fixture of conftest.py: puts a widget on a page


def press(root: Locator, *keys: str) -> None:
    plot = root.locator(".shardlab-plot")
    (plot if plot.count() else root.get_by_role("button")).focus()  # a prediction is a form
    for key in keys:
        root.page.keyboard.press(key)


def hover(root: Locator, x: float, y: float) -> None:
    """Hover over a point of the scene, in its own pixels."""
    root.locator("canvas").hover(position={"x": x, "y": y})


def stop_the_clock(root: Locator) -> None:
    """From now on only `root.page.clock.run_for(ms)` advances the page's time."""
    root.page.clock.install(time=1)
    root.page.clock.pause_at(2)
