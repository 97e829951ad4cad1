"""Takes a screenshot of the JupyterLab page after each failure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.jupyterlab import JupyterLab


@pytest.fixture(autouse=True)
def screenshot_on_failure(
    lab: JupyterLab, artifacts: Path, request: pytest.FixtureRequest
) -> Iterator[None]:
    failed_before = request.session.testsfailed
    yield
    if request.session.testsfailed > failed_before:
        lab.page.screenshot(path=artifacts / f"failed-{request.node.name}.png")
