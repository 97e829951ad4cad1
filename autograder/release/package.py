"""Every file of the students' package, as bytes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from autograder import exercises
from autograder.release.record import recorded
from autograder.release.refusal import ReleaseError
from autograder.release.strip import Stripped

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
SCRATCH = {".ipynb_checkpoints", "__pycache__"}
# What only the checker has.  A student's `check` imports none of it.
CHECKERS = (
    *("build", "feedback", "formgrader", "grading"),
    *("kept_back", "release", "report", "sandbox"),
)


def package(repo: Path) -> dict[str, bytes]:
    """{path in the package: bytes}, the same bytes on each call. Raises ReleaseError."""
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
    """The students' side of autograder/: what ``check`` imports, exercises, recorded results."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in _imported(folder)}
    of_labs = [exercise for lab in exercises.labs() for exercise in exercises.of_lab(lab)]
    sources = {
        path.stem: path.read_text(encoding="utf-8")
        for path in sorted((folder / "exercises").glob("*.py"))
        if path.stem != "__init__"
    }
    stripped = Stripped(sources, of_labs)
    for stem, text in stripped.texts.items():
        files[f"exercises/{stem}.py"] = text.encode()
    used = [(exercise, sorted(stripped.kept_back[exercise.name])) for exercise in of_labs]
    for name, table in recorded(used).items():
        files[f"references/{name}"] = table
    return files


def _imported(folder: Path) -> list[Path]:
    """Modules of autograder that ``from autograder import check`` leads to, now or later."""
    found: set[Path] = set()
    ahead = [folder / "__init__.py", folder / "exercises" / "__init__.py", folder / "recorded.py"]
    while ahead:
        path = ahead.pop()
        if path not in found:
            found.add(path)
            ahead += _modules_named_in(path, folder)
    return sorted(found)


def _modules_named_in(path: Path, folder: Path) -> Iterator[Path]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            named = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in named:
            top, _, rest = name.partition(".")
            if top != folder.name or not rest or rest.startswith("exercises."):
                continue
            module = folder.joinpath(*rest.split(".")).with_suffix(".py")
            if not module.exists():
                module = module.with_suffix("") / "__init__.py"
            if module.exists():
                if rest.split(".")[0] in CHECKERS:
                    raise ReleaseError(
                        f"{path}, line {node.lineno}: a student's `check` would import {name}, "
                        "which only the checker may have"
                    )
                yield module
