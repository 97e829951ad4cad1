"""Find a Chromium for the browser tests, or get one.

    python -m tools.browser            prints its path; installs one where there is none
    python -m tools.browser --find     only looks

Looked for in this order: $SHARDLAB_CHROMIUM, a browser on the PATH, one that Playwright downloaded.
Installed in this order: Debian's package where we are root and have apt, Playwright's own build.
Exits 1 with one line on stderr where no browser can be had: the tests then skip, they do not fail.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from tools import debian

# Debian's headless shell is Chromium without windows: a page costs half of what it costs otherwise.
SHELL = "chromium-headless-shell"
NAMES = (SHELL, "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MAC_CHROME = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
# Without fonts every letter on a page is a box.
DEBIAN_PACKAGES = (SHELL, "fonts-liberation", "fonts-dejavu-core")
FOR = "a browser for the tests"

# What headless Chromium needs in a container, and no phoning home while the tests run.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
NONE = "no Chromium here and none could be installed: the browser tests are skipped"


def find() -> str | None:
    """The path of a Chromium on this machine, or None."""
    wanted = os.environ.get("SHARDLAB_CHROMIUM")
    if wanted:
        return shutil.which(wanted)
    for name in NAMES:
        if path := shutil.which(name):
            return path
    if MAC_CHROME.exists():
        return str(MAC_CHROME)
    return _downloaded_by_playwright()


def get() -> str | None:
    """The path of a Chromium, installed now if need be, or None where none can be had."""
    if path := find():
        return path
    for install in (_install_from_debian, _download_by_playwright):
        if install() and (path := find()):
            return path
    return None


def _downloaded_by_playwright() -> str | None:
    caches = (Path.home() / ".cache/ms-playwright", Path.home() / "Library/Caches/ms-playwright")
    inside = ("chrome-linux*/chrome", "chrome-mac*/*.app/Contents/MacOS/*")
    found = [path for cache in caches for end in inside for path in cache.glob(f"chromium-*/{end}")]
    return str(max(found, key=lambda path: path.stat().st_mtime)) if found else None


def _install_from_debian() -> bool:
    return debian.install(FOR, *DEBIAN_PACKAGES)


def _download_by_playwright() -> bool:
    return debian.quietly(FOR, sys.executable, "-m", "playwright", "install", "chromium")


def main() -> int:
    path = find() if "--find" in sys.argv[1:] else get()
    print(path or NONE, file=sys.stdout if path else sys.stderr)
    return 0 if path else 1


if __name__ == "__main__":
    sys.exit(main())
