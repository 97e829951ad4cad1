"""Which code decided a grade."""

from __future__ import annotations

import functools
import hashlib
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

AUTOGRADER = Path(__file__).parents[1]
# Makes notebooks or pages, or moves records about: no grade depends on it.
DECIDES_NOTHING = ("build", "release", "feedback", "report", "__main__.py")
DECIDES_NOTHING_IN_GRADING = (
    "engine", "work", "cluster", "journal", "writer", "progress", "table", "regrade", "command",
    "arguments", "pictures", "tasks", "decide", "gradebook", "seed", "names",
    "version",
)  # fmt: skip


@functools.cache
def code_version() -> str:
    """A hash of the checker, the exercises and their references, and the versions below them."""
    digest = hashlib.sha256()
    for package in ("torch", "numpy", "cloudpickle"):
        digest.update(f"{package} {version(package)}\n".encode())
    for path in _deciding_files():
        digest.update(f"{path.name}\n".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _deciding_files() -> list[Path]:
    # Found, not imported: that would start a rank server, in a process that runs no ranks.
    spec = find_spec("shardlab")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    found = [path for path in package.rglob("*") if path.suffix in (".py", ".js", ".css")]
    for path in AUTOGRADER.rglob("*"):
        first, *rest = path.relative_to(AUTOGRADER).parts
        idle = first in DECIDES_NOTHING or "__pycache__" in rest or first == "__pycache__"
        if first == "grading" and rest:
            idle = idle or rest[0].removesuffix(".py") in DECIDES_NOTHING_IN_GRADING
        if path.is_file() and not idle:
            found.append(path)
    return sorted(found)
