"""Find JupyterHub's proxy, which the test with a hub needs, or install it.

    python -m tools.hub            prints its path; as root installs Debian's package if needed

Without it, exits with status 1 and one line on stderr; the test is then skipped.
"""

from __future__ import annotations

import shutil
import sys

from tools import debian

PROXY = "configurable-http-proxy"
# Debian's Node.js searches this folder for packages; other builds do not.
NODE_PATH = "/usr/share/nodejs"
NONE = f"found no {PROXY} and could not install it: the test with JupyterHub is skipped"


def get() -> str | None:
    """The path of the proxy, installed first if needed; None if that is impossible."""
    if not shutil.which(PROXY):
        debian.install("JupyterHub's proxy for the tests", f"node-{PROXY}")
    return shutil.which(PROXY)


if __name__ == "__main__":
    path = get()
    print(path or NONE, file=sys.stdout if path else sys.stderr)
    sys.exit(0 if path else 1)
