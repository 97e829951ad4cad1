"""Shell commands of the docs, and how tests run them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.running_lab import ROOT


def environment(root: Path) -> dict[str, str]:
    # Variables of the make and pytest that run this test.
    excluded = ("PYTEST", "JUPYTER", "MAKE", "MFLAGS", "ARGS")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(excluded)}
    # The original checkout is on the environment's import path, so put the copy first.
    return inherited | {"PYTHONPATH": os.pathsep.join([str(root), str(root / "course")])}


def shell(root: Path, command: str, *, limit_s: float = 280, **more: str) -> str:
    """Run a command that must succeed and return its stdout. ``more``: environment variables."""
    result = subprocess.run(
        ["bash", "-euc", command],
        cwd=root,
        env=environment(root) | more,
        capture_output=True,
        text=True,
        timeout=limit_s,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


class Snippet(NamedTuple):
    """Code in docs/instructors.md. kind: "command" (a line of a shell block), "inline" (code in a
    sentence, on one line) or the language of a block."""

    kind: str
    text: str


def instructors_page() -> list[Snippet]:
    """The code of docs/instructors.md, in order; shell commands without comments."""
    page = (ROOT / "docs/instructors.md").read_text()
    snippets = []
    for language, block, inline in re.findall(
        r"^```(\w*)\n(.*?)^```|`([^`]+)`", page, re.MULTILINE | re.DOTALL
    ):
        if inline:
            snippets.append(Snippet("inline", " ".join(inline.split())))
        elif language:
            snippets.append(Snippet(language, block))
        else:
            lines = block.replace("\\\n", " ").splitlines()
            commands = (re.sub(r"(^|\s+)#.*", "", line) for line in lines)
            snippets += [Snippet("command", command) for command in commands if command]
    return snippets


def instructors_commands() -> list[str]:
    return [snippet.text for snippet in instructors_page() if snippet.kind == "command"]
