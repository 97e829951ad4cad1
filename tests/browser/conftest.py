"""One JupyterLab page for all tests of a module, and a screenshot of it after each failure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.browser.jupyterlab import JupyterLab
from tests.conftest import STEP_LIMIT_MS
from tests.running_lab import LabServer


@pytest.fixture(scope="module")
def lab(browser: Browser, lab_server: LabServer) -> Iterator[JupyterLab]:
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    context.set_default_timeout(STEP_LIMIT_MS)
    lab = JupyterLab(context.new_page(), lab_server)
    yield lab
    context.close()


@pytest.fixture(scope="module")
def desk(lab: JupyterLab) -> JupyterLab:
    """JupyterLab, loaded once, for tests that open one notebook after another."""
    lab.visit()
    return lab


@pytest.fixture(autouse=True)
def screenshot_on_failure(
    lab: JupyterLab, artifacts: Path, request: pytest.FixtureRequest
) -> Iterator[None]:
    failed_before = request.session.testsfailed
    yield
    if request.session.testsfailed > failed_before:
        lab.page.screenshot(path=artifacts / f"failed-{request.node.name}.png")
