"""Makes git ignore, in this clone, what running a notebook changes: outputs and kernel details.

    make env        (make lab and make test do this first)

The outputs stay in the file. .gitattributes names the filter, which uses nbstripout; git runs it
when it compares or adds a notebook. It also drops empty code cells at the end: JupyterLab adds one
when Shift+Enter runs the last cell. A course outside a git repository needs no filter.

If a file's size differs from the recorded one, git considers it modified and skips the filter. So
JupyterLab calls `after_save` (jupyter/jupyter_server_config.py).
"""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SETTING = "filter.notebook-outputs.clean"
# A kernel writes these, too; the built notebooks contain only the language's name.
LANGUAGE_DETAILS = (
    "version",
    "codemirror_mode",
    "file_extension",
    "mimetype",
    "nbconvert_exporter",
    "pygments_lexer",
)


def main() -> int:
    if sys.argv[1:] == ["--clean"]:
        clean()
        return 0
    problem = install(ROOT)
    if problem:
        print(f"shardlab: git will show notebooks as changed after a run: {problem}")
    return 0


def install(root: Path) -> str:
    """Configure the filter in the repository ``root``; returns why that failed, or ""."""
    if not (root / ".git").exists():
        return ""
    wanted = command(sys.executable)
    try:
        found = git(root, "config", "--local", "--get", SETTING)
        if found.stdout.strip() != wanted:
            return git(root, "config", "--local", SETTING, wanted).stderr.strip()
    except FileNotFoundError:
        return ""  # git is not installed
    return ""


def after_save(model: dict[str, Any], os_path: str, contents_manager: object) -> None:
    """JupyterLab's hook, called after `os_path` has been saved."""
    if model["type"] == "notebook":
        forget_size(Path(os_path))


def forget_size(path: Path) -> None:
    """Make git compare the notebook's content next time; its staged content does not change."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        listed = git(path.parent, "ls-files", "--stage", "--", path.name).stdout.splitlines()
        if len(listed) == 1:  # tracked, and not in a merge conflict
            mode, digest, _ = listed[0].partition("\t")[0].split()
            prefix = git(path.parent, "rev-parse", "--show-prefix").stdout.strip()
            entry = f"{mode},{digest},{prefix}{path.name}"
            git(path.parent, "update-index", "--cacheinfo", entry)


def command(python: str) -> str:
    """The filter's shell command; without the environment, it leaves notebooks unchanged."""
    python, script = shlex.quote(python), shlex.quote(str(Path(__file__).resolve()))
    return (
        f"if test -x {python} && test -f {script}; then {python} -I {script} --clean; else cat; fi"
    )


def clean() -> None:
    """The filter itself, from stdin to stdout."""
    sys.stdin = io.TextIOWrapper(io.BytesIO(without_empty_end(sys.stdin.buffer.read())))
    keys = " ".join(f"metadata.language_info.{detail}" for detail in LANGUAGE_DETAILS)
    sys.argv = ["nbstripout", "--keep-id", "--extra-keys", keys]
    runpy.run_module("nbstripout", run_name="__main__")


def without_empty_end(notebook: bytes) -> bytes:
    """The notebook without empty code cells at its end, except those that nbgrader knows."""
    try:
        content = json.loads(notebook)
        cells = content["cells"]
    except (ValueError, KeyError, TypeError):
        return notebook  # nbstripout reports it
    while cells and _is_empty_code(cells[-1]):
        del cells[-1]
    return json.dumps(content).encode()


def _is_empty_code(cell: dict[str, Any]) -> bool:
    is_plain = cell["cell_type"] == "code" and "nbgrader" not in cell["metadata"]
    return is_plain and not "".join(cell["source"]).strip()


def git(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10
    )


if __name__ == "__main__":
    sys.exit(main())
