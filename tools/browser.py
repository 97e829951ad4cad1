"""Find Chromium for the browser tests, or install it.

    python -m tools.browser            prints its path; installs it if needed
    python -m tools.browser --find     only searches

Searches in this order: $SHARDLAB_CHROMIUM, the PATH, Playwright's downloads.
Tries to install in this order: Debian's package (as root with apt), Playwright's own build.
Without a browser it exits with status 1 and one line on stderr; the tests are then skipped.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from tools import debian

# Debian's headless shell is Chromium without a user interface: a page needs half the resources.
SHELL = "chromium-headless-shell"
NAMES = (SHELL, "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MAC_CHROME = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
# Without fonts, every letter on a page would be drawn as a box.
DEBIAN_PACKAGES = (SHELL, "fonts-liberation", "fonts-dejavu-core")
PURPOSE = "a browser for the tests"

# For running in a container, and against network access during the tests.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
NONE = "found no Chromium and could not install one: the browser tests are skipped"


def find() -> str | None:
    """The path of Chromium on this machine, or None."""
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
    """The path of Chromium, installed first if needed; None if that fails."""
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
    return debian.install(PURPOSE, *DEBIAN_PACKAGES)


def _download_by_playwright() -> bool:
    return debian.run_installer(PURPOSE, sys.executable, "-m", "playwright", "install", "chromium")


def main() -> int:
    path = find() if "--find" in sys.argv[1:] else get()
    print(path or NONE, file=sys.stdout if path else sys.stderr)
    return 0 if path else 1


if __name__ == "__main__":
    sys.exit(main())
