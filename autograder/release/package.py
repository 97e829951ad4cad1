"""Every file of the students' package, as bytes."""

from __future__ import annotations

import re
from pathlib import Path

from autograder.build.products import SCRATCH
from autograder.release.record import recorded

AS_THEY_ARE = (
    "LICENSE",
    "requirements.lock",
    "environment.yml",
    "course/chapters/*.ipynb",
    "course/shardlab/**/*.py",
    "course/shardlab/**/*.js",
    "course/shardlab/**/*.css",
    "labs/*/*.ipynb",
    "jupyter/**/*.py",
    "jupyter/**/*.json",
    "tools/environment.py",
    "tools/lab.py",
)
HERE = Path(__file__).parent / "student"  # README.md and Makefile of a students' copy
# Rooms that a student's `check` runs in; of exercises, the halves that are public.
ROOMS = ("guest", "exercise", "evaluation", "exercises")
HIDDEN = "hidden"


def package(repo: Path) -> dict[str, bytes]:
    """{path in the package: bytes}, the same bytes on each call."""
    files = {
        str(path.relative_to(repo)): path.read_bytes()
        for pattern in AS_THEY_ARE
        for path in sorted(repo.glob(pattern))
        if path.is_file() and not SCRATCH & set(path.parts)
    }
    files |= {path.name: path.read_bytes() for path in HERE.iterdir() if path.is_file()}
    files["pyproject.toml"] = _project(repo).encode()
    files |= {f"autograder/{name}": text for name, text in _checks(repo / "autograder").items()}
    return dict(sorted(files.items()))


def _project(repo: Path) -> str:
    """pyproject.toml without what only those who develop the course need."""
    text = (repo / "pyproject.toml").read_text(encoding="utf-8")
    tables = re.split(r"^(?=\[)", text, flags=re.MULTILINE)
    kept = ("[build-system]", "[project]", "[tool.setuptools")
    return "".join(table for table in tables if table.startswith(kept))


def _checks(folder: Path) -> dict[str, bytes]:
    """The students' side of autograder/: what ``check`` runs, and what decided visible cases."""
    paths = [path for room in ROOMS for path in sorted((folder / room).rglob("*.py"))]
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in [folder / "__init__.py", *paths]
        if not {HIDDEN, *SCRATCH} & set(path.relative_to(folder).parts)
    }
    return files | {f"exercises/{name}": data for name, data in recorded().items()}
