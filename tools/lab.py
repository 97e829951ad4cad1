"""Open JupyterLab on the course's front page.

    make lab ARGS="--port 9000"        or, in a conda environment:   python tools/lab.py --port 9000

--instructor shows nbgrader's menu, formgrader and buttons; readers do without them. A hub, which
does not use this script, shows them. Other arguments are passed to JupyterLab. Its settings are in
jupyter/ in this repository; the user's own Jupyter settings are not changed.
"""

from __future__ import annotations

import os
import socket
import sys
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INSTRUCTOR = "--instructor"
FIRST_PAGE = "/lab/tree/course/front_page.ipynb"


def main(args: list[str]) -> None:
    port = option(args, "port")
    if port and port != "0" and is_taken(option(args, "ip") or "localhost", int(port)):
        sys.exit(
            f"shardlab: port {port} is in use: choose another one, or omit --port "
            "and let JupyterLab choose a free one"
        )
    for_instructor = INSTRUCTOR in args
    args = [arg for arg in args if arg != INSTRUCTOR]
    print("shardlab: starting JupyterLab; its address follows in a few seconds", flush=True)
    # The server replaces this process, so there is one process to interrupt and one exit status.
    # It runs in the repository root, where nbgrader looks for nbgrader_config.py.
    os.chdir(ROOT)
    os.execve(sys.executable, command(args), environment(for_instructor))


def option(args: list[str], name: str) -> str | None:
    """The value of --name VALUE, --name=VALUE or --ServerApp.name=VALUE; the last one wins."""
    flags = (f"--{name}", f"--ServerApp.{name}")
    found = None
    for here, after in pairwise([*args, ""]):
        flag, equals, value = here.partition("=")
        if flag in flags:
            found = value if equals else after
    return found


def is_taken(ip: str, port: int) -> bool:
    """Whether the port is already in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("" if ip == "*" else ip, port))
        except OSError:
            return True
    return False


def command(args: list[str]) -> list[str]:
    ours = [f"--LabApp.default_url={FIRST_PAGE}"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        ours.append("--allow-root")  # users of a container are usually root
    return [sys.executable, "-m", "jupyterlab", *ours, *args]


def environment(for_instructor: bool = False) -> dict[str, str]:
    """This process's environment, with the project's Jupyter settings and this Python first."""
    own = os.environ.copy()
    folders = [ROOT / "jupyter"] if for_instructor else [ROOT / "jupyter/reader", ROOT / "jupyter"]
    ours = os.pathsep.join(map(str, folders))  # the first has priority
    own["JUPYTER_CONFIG_PATH"] = _prepend(ours, own.get("JUPYTER_CONFIG_PATH"))
    # A kernel named python3 in the user's home must not replace this environment's kernel.
    own["JUPYTER_PREFER_ENV_PATH"] = "1"
    # nbgrader calls alembic by name, and DeepSpeed calls ninja.
    own["PATH"] = _prepend(str(Path(sys.executable).parent), own.get("PATH"))
    return own


def _prepend(first: str, rest: str | None) -> str:
    return os.pathsep.join([first, rest]) if rest else first


if __name__ == "__main__":
    main(sys.argv[1:])
