"""Shell commands of the docs, and how tests run them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.running_lab import ROOT


def environment(root: Path) -> dict[str, str]:
    not_ours = ("PYTEST", "JUPYTER", "MAKE", "MFLAGS", "ARGS")  # of the make that runs this test
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(not_ours)}
    # The environment has the original checkout on its import path: the copy comes first.
    return inherited | {"PYTHONPATH": os.pathsep.join([str(root), str(root / "course")])}


def shell(root: Path, command: str, *, limit_s: float = 280, **more: str) -> str:
    """What the command prints; it must succeed. ``more``: environment variables."""
    done = subprocess.run(
        ["bash", "-euc", command],
        cwd=root,
        env=environment(root) | more,
        capture_output=True,
        text=True,
        timeout=limit_s,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


class Piece(NamedTuple):
    """Of docs/instructors.md: a line of a shell block ("command"), a block in another language
    (its name), or code in a sentence ("inline"; on one line)."""

    kind: str
    text: str


def instructors_page() -> list[Piece]:
    """Its code, in the order of the page; shell commands without comments."""
    page = (ROOT / "docs/instructors.md").read_text()
    pieces = []
    for language, block, inline in re.findall(
        r"^```(\w*)\n(.*?)^```|`([^`]+)`", page, re.MULTILINE | re.DOTALL
    ):
        if inline:
            pieces.append(Piece("inline", " ".join(inline.split())))
        elif language:
            pieces.append(Piece(language, block))
        else:
            lines = block.replace("\\\n", " ").splitlines()
            commands = (re.sub(r"(^|\s+)#.*", "", line) for line in lines)
            pieces += [Piece("command", command) for command in commands if command]
    return pieces


def instructors_commands() -> list[str]:
    return [piece.text for piece in instructors_page() if piece.kind == "command"]
