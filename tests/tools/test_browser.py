"""tools.browser finds a Chromium for the tests, or prints one line if there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.running_lab import ROOT, LabServer
from tools import browser


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No browser, no apt and no network: nothing on the PATH, an empty HOME."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PLAYWRIGHT_DOWNLOAD_HOST", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.delenv("SHARDLAB_CHROMIUM", raising=False)
    monkeypatch.setattr(browser, "MAC_CHROME", tmp_path / "none")


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.mark.usefixtures("bare_machine")
def test_none_is_found_on_a_bare_machine() -> None:
    assert browser.find() is None


@pytest.mark.usefixtures("bare_machine")
def test_searches_the_path_before_playwrights_downloads(tmp_path: Path) -> None:
    downloaded = executable(tmp_path / ".cache/ms-playwright/chromium-1/chrome-linux/chrome")
    assert browser.find() == str(downloaded)
    on_path = executable(tmp_path / "google-chrome")
    assert browser.find() == str(on_path)
    shell = executable(tmp_path / "chromium-headless-shell")
    assert browser.find() == str(shell)


@pytest.mark.usefixtures("bare_machine")
def test_the_environment_variable_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable(tmp_path / "chromium")
    own = executable(tmp_path / "own/browser")
    monkeypatch.setenv("SHARDLAB_CHROMIUM", str(own))
    assert browser.find() == str(own)


@pytest.mark.usefixtures("bare_machine")
def test_without_a_browser_it_prints_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.browser", "--find"],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == f"{browser.NONE}\n"


@pytest.mark.browser
def test_jupyterlab_opens_without_a_popup(
    lab_server: LabServer, page: Page, artifacts: Path
) -> None:
    page.goto(lab_server.url_of("README.md"))
    page.wait_for_function("window.jupyterapp?.restored")
    page.locator(".jp-FileEditor, .jp-MarkdownViewer").first.wait_for()
    assert page.locator(".jp-Dialog, .Toastify__toast").count() == 0
    page.screenshot(path=artifacts / "jupyterlab.png")
