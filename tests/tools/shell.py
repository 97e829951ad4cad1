"""Shell commands of the docs, and how tests run them."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from tests.running_lab import ROOT


def environment(root: Path) -> dict[str, str]:
    not_ours = ("PYTEST", "JUPYTER", "MAKE", "MFLAGS", "ARGS")  # of the make that runs this test
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(not_ours)}
    # The environment has the original checkout on its import path: the copy comes first.
    return inherited | {"PYTHONPATH": os.pathsep.join([str(root), str(root / "course")])}


def shell(root: Path, command: str, **more: str) -> str:
    """What the command prints; it must succeed."""
    done = subprocess.run(
        ["bash", "-euc", command],
        cwd=root,
        env=environment(root) | more,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def instructors_commands() -> list[str]:
    """Of the shell blocks of docs/instructors.md, without comments."""
    text = (ROOT / "docs/instructors.md").read_text()
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [
        re.sub(r"(^|\s+)#.*", "", line)
        for language, block in blocks
        if not language and not block.startswith("student,")
        for line in block.replace("\\\n", " ").splitlines()
    ]
    return [line for line in lines if line]
