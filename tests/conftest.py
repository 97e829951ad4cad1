"""Fixtures for tests in a real browser, against the JupyterLab that `make lab` starts.

    def test_chapter(lab_server, page):
        page.goto(lab_server.url_of("course/chapters/00_start_here.ipynb"))

`lab_server.root` is a copy of the repository, which tests may change.
"""

from __future__ import annotations

import atexit
import gc
import os
import re
import shutil
import signal
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, expect, sync_playwright
from xdist.scheduler import LoadFileScheduling

from tests.browser.jupyterlab import JupyterLab
from tests.running_lab import ROOT, LabServer, copy_repository, running_lab

# Hooks of pytest, which it finds in this module.
from tests.selection import (
    pytest_addoption,  # noqa: F401
    pytest_collection_modifyitems,  # noqa: F401
    pytest_configure,  # noqa: F401
    pytest_report_header,  # noqa: F401
)
from tools import browser as chromium

# Set before torch is loaded, here and in child processes: idle OpenMP threads must not spin on
# cores that other tests need.
os.environ["OMP_WAIT_POLICY"] = "passive"

# Checks that tests run are not recorded among those of the user.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="shardlab-state-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

ARTIFACTS = ROOT / "tests/artifacts"
STEP_LIMIT_MS = 60_000  # generous, since a cell may start real ranks
DRIVER_LIMIT_S = 60  # it gives browsers 30 s to close
expect.set_options(timeout=STEP_LIMIT_MS)


def pytest_sessionstart(session: pytest.Session) -> None:
    # A shell starts background jobs with SIGINT ignored. Processes that a test starts and
    # interrupts would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if getattr(session.config.option, "numprocesses", None):  # once for all pytest-xdist workers
        begin_artifacts()


class FilesAndLabs(LoadFileScheduling):
    """Each worker runs whole files, so that module fixtures are set up once.  The planted mistakes,
    a fifth of all work, are split by lab."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        lab = re.search(r"\[(\d\d)_", nodeid) if file.endswith("test_planted.py") else None
        return f"{file} {lab[1]}" if lab else file


@pytest.hookimpl(optionalhook=True)  # where pytest-xdist is switched off
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesAndLabs:
    return FilesAndLabs(config, log)


def pytest_collection_finish() -> None:
    gc.freeze()  # exclude thousands of tests from garbage collection


@pytest.fixture(scope="session")
def artifacts(request: pytest.FixtureRequest) -> Path:
    """The folder for screenshots. git ignores it; each run starts with an empty one."""
    if not hasattr(request.config, "workerinput"):
        begin_artifacts()
    return ARTIFACTS


def begin_artifacts() -> None:
    shutil.rmtree(ARTIFACTS, ignore_errors=True)
    ARTIFACTS.mkdir(parents=True)


@pytest.fixture(scope="session")
def lab_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """One JupyterLab for all browser tests, serving a copy of the repository."""
    root = copy_repository(tmp_path_factory.mktemp("course") / "shardlab")
    home = tmp_path_factory.mktemp("home")
    with running_lab(root, home, "--instructor") as server:  # the tests grade and validate
        yield server


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium for all tests; without one, tests that need it are skipped.

    Once it has started, an event loop runs in this thread: call asyncio.run in another one.
    """
    path = chromium.find()
    if path is None and os.environ.get("SHARDLAB_NEEDS_BROWSER"):
        pytest.fail(chromium.NONE)
    if path is None:
        pytest.skip(chromium.NONE)
    with running_playwright() as playwright:
        # Openers are animated SVGs, which use half a core while they play.  This flag affects only
        # images: pages themselves prefer motion unless a test requests otherwise.
        flags = [*chromium.FLAGS, "--force-prefers-reduced-motion"]
        started = playwright.chromium.launch(executable_path=path, args=flags)
        yield started
        started.close()


@contextmanager
def running_playwright() -> Iterator[Playwright]:
    """Playwright, whose driver is killed if it does not exit once it may.

    After two of five whole runs, Playwright 1.65.2 waited forever for a driver without a browser.
    """
    others = set(psutil.Process().children())
    with sync_playwright() as playwright:
        drivers = set(psutil.Process().children()) - others
        yield playwright
        timer = threading.Timer(DRIVER_LIMIT_S, kill_drivers, [drivers])
        timer.start()
    timer.cancel()


def kill_drivers(drivers: set[psutil.Process]) -> None:
    for driver in drivers:
        with suppress(psutil.NoSuchProcess):
            threads = [
                Path(f"/proc/{driver.pid}/task/{thread.id}/wchan").read_text()
                for thread in driver.threads()
            ]
            warnings.warn(f"killed {driver}, whose threads were in {threads}", stacklevel=1)
            driver.kill()


@contextmanager
def new_context(browser: Browser) -> Iterator[BrowserContext]:
    """Its pages have 1400 x 1000 pixels."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    context.set_default_timeout(STEP_LIMIT_MS)
    yield context
    context.close()


@contextmanager
def new_page(browser: Browser) -> Iterator[Page]:
    """A page in its own browser context."""
    with new_context(browser) as context:
        yield context.new_page()


@pytest.fixture(scope="session")
def lab_context(browser: Browser) -> Iterator[BrowserContext]:
    """For all JupyterLab pages, so that only the first loads and compiles its scripts."""
    with new_context(browser) as context:
        yield context


@pytest.fixture(scope="module")
def lab(
    lab_context: BrowserContext, lab_server: LabServer, request: pytest.FixtureRequest
) -> Iterator[JupyterLab]:
    """One JupyterLab page for all tests of a module, without tabs of other modules."""
    with closing(lab_context.new_page()) as page:
        yield JupyterLab(page, lab_server, request.config.getoption("--screenshots"))


@pytest.fixture(scope="module")
def loaded_lab(lab: JupyterLab) -> JupyterLab:
    """The same page, loaded: for tests that open one notebook after another."""
    lab.visit()
    return lab


@pytest.fixture
def page(browser: Browser, artifacts: Path, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A fresh page; a failing test leaves a screenshot of it."""
    failed_before = request.session.testsfailed
    with new_page(browser) as page:
        yield page
        if request.session.testsfailed > failed_before:
            page.screenshot(path=artifacts / f"failed-{request.node.name}.png")
