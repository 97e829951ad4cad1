"""Every file of the students' package, as bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path

from autograder import exercises
from autograder.build.products import SCRATCH
from autograder.release.chosen_labs import of_labs, without_links
from autograder.release.record import recorded

COPIED = (
    "LICENSE",
    "requirements.lock",
    "environment.yml",
    "course/*.ipynb",
    "course/chapters/*.ipynb",
    "course/chapters/openers/**/*.svg",
    "course/shardlab/**/*.py",
    "course/shardlab/**/*.js",
    "course/shardlab/**/*.css",
    "course/shardlab/**/*.json",
    "course/shardlab/**/*.safetensors",
    "labs/*/*.ipynb",
    "jupyter/**/*.py",
    "jupyter/**/*.json",
    "jupyter/**/*.css",
    "jupyter/**/*.js",
    "tools/environment.py",
    "tools/lab.py",
    "tools/update.py",
    # What a student's `check` imports; only the public halves of the exercises.
    "autograder/__init__.py",
    "autograder/__main__.py",
    "autograder/course/**/*.py",
    "autograder/guest/**/*.py",
    "autograder/exercise/**/*.py",
    "autograder/evaluation/**/*.py",
    "autograder/exercises/**/*.py",
    "autograder/job/**/*.py",
)
EXCLUDED = {"hidden", *SCRATCH}
PAGE_CONFIG = "jupyter/labconfig/page_config.json"
# Parts of nbgrader in JupyterLab.  Students on a hub fetch, validate and submit with the others.
FOR_INSTRUCTORS = ("create-assignment", "formgrader", "course-list")
STUDENT_FILES = Path(__file__).parent / "student"  # README.md and Makefile of the students' package


def package(repo: Path, labs: Collection[str] = ()) -> dict[str, bytes]:
    """{path in the package: bytes}; deterministic. ``labs``: only these labs; default: all."""
    labs = labs or exercises.labs()
    files = {
        str(path): (repo / path).read_bytes()
        for pattern in COPIED
        for path in (found.relative_to(repo) for found in repo.glob(pattern))
        if (repo / path).is_file() and not EXCLUDED & set(path.parts)
    }
    files |= {path.name: path.read_bytes() for path in STUDENT_FILES.iterdir() if path.is_file()}
    files["pyproject.toml"] = _project(repo).encode()
    files[PAGE_CONFIG] = _page_config(files[PAGE_CONFIG])
    files |= {f"autograder/exercises/{name}": data for name, data in recorded(labs).items()}
    return {
        path: without_links(content, labs) if path.endswith(".ipynb") else content
        for path, content in sorted(of_labs(files, labs).items())
    }


def _page_config(ours: bytes) -> bytes:
    config = json.loads(ours)
    hidden = {f"@jupyter/nbgrader:{name}": True for name in FOR_INSTRUCTORS}
    config["disabledExtensions"] |= hidden
    return json.dumps(config, indent=2).encode() + b"\n"


def _project(repo: Path) -> str:
    """pyproject.toml without the tables that only the course's developers need."""
    text = (repo / "pyproject.toml").read_text(encoding="utf-8")
    tables = re.split(r"^(?=\[)", text, flags=re.MULTILINE)
    kept = ("[build-system]", "[project]", "[tool.setuptools")
    return "".join(table for table in tables if table.startswith(kept))
