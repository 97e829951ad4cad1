"""python -m autograder times: run all chapters and solved labs, and store how long each takes.

The build shows these times on the front page. Reading time is computed from the word count.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

from autograder.build.front_page import Times

TIMES = "autograder/build/run_times.json"
CELL_LIMIT_S = 600


def read_times(repo: Path) -> Times:
    """The stored times, without notebooks that have not been measured yet."""
    try:
        stored = json.loads((repo / TIMES).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Times("not measured yet", {})
    return Times(stored["machine"], stored["run_s"])


def measure(repo: Path, names: list[str]) -> None:
    """Run the chapters and labs ``names`` (default: all) and store their run times.

    A lab's time is that of its solution. Raises CellExecutionError if a cell fails.
    """
    times = read_times(repo)
    run_s = dict(times.run_s)
    chapters = sorted((repo / "course/chapters").glob("*.ipynb"))
    for path in [*chapters, *sorted((repo / "solutions").glob("*/*.ipynb"))]:
        if names and path.stem not in names:
            continue
        name = str(path.relative_to(repo)).replace("solutions/", "labs/", 1)
        run_s[name] = round(run(path), 1)
        print(f"{run_s[name]:6.1f} s  {name}", flush=True)
        stored = {"machine": machine(), "run_s": dict(sorted(run_s.items()))}
        (repo / TIMES).write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


def run(path: Path) -> float:
    """Seconds to run all cells of a notebook in a new kernel, including kernel startup."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory(prefix="shardlab-times-") as folder:
        # Do not record the checks of a solved lab as the reader's own.
        environment = {**os.environ, "XDG_STATE_HOME": folder}
        # A kernel that listens on sockets in the folder needs no ports.
        kernel = {"transport": "ipc", "connection_file": f"{folder}/kernel.json"}
        client = NotebookClient(
            notebook,
            timeout=CELL_LIMIT_S,
            config=Config(KernelManager=kernel),
            resources={"metadata": {"path": folder}},
        )
        started = time.monotonic()
        client.execute(env=environment)
        return time.monotonic() - started


def machine() -> str:
    return f"{os.cpu_count()} CPU cores, Python {platform.python_version()}"
