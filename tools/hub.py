"""Find JupyterHub's proxy for the test with a hub, or install it.

    python -m tools.hub            prints its path; as root installs Debian's package if needed

Without it, exits with 1 and one line on stderr; the test is then skipped, not failed.
"""

from __future__ import annotations

import shutil
import sys

from tools import debian

PROXY = "configurable-http-proxy"
# Debian's own Node.js looks here for packages by itself; one from elsewhere does not.
NODE_PATH = "/usr/share/nodejs"
NONE = f"found no {PROXY} and could not install it: the test with JupyterHub is skipped"


def get() -> str | None:
    """The path of the proxy, installed now if needed and possible, else None."""
    if not shutil.which(PROXY):
        debian.install("JupyterHub's proxy for the tests", f"node-{PROXY}")
    return shutil.which(PROXY)


if __name__ == "__main__":
    path = get()
    print(path or NONE, file=sys.stdout if path else sys.stderr)
    sys.exit(0 if path else 1)
