"""Every generated notebook of the repository: what it should hold, and writing it safely."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from autograder import exercises
from autograder.build.release import release
from autograder.build.text import SourceError, notebook_bytes, notebook_from_text
from autograder.grading.submission.template import find_check, is_check

REBUILD = "python -m autograder build"
SCRATCH = {".ipynb_checkpoints", "__pycache__"}  # git does not see them either


@dataclass(frozen=True)
class Drift:
    """One file that is not what its source says; ``why`` is for the person at the keyboard."""

    path: Path
    why: str


def products(repo: Path) -> dict[Path, bytes]:
    """{path: bytes} of every notebook that the sources in ``repo`` make.

    All sources are read before any error is raised: SourceError then names every broken one.
    """
    made: dict[Path, bytes] = {}
    broken: list[str] = []
    for source in _sources(repo):
        try:
            notebook = notebook_from_text(source)
            if source.is_relative_to(repo / "solutions"):
                _require_exercises(source, notebook)
            product = source.with_name(source.name.replace(".nb.py", ".ipynb"))
            made[product] = notebook_bytes(notebook)
        except SourceError as error:
            broken.append(str(error))
    if broken:
        raise SourceError("\n".join(broken))

    for folder in sorted({path.parent for path in made if path.is_relative_to(repo / "solutions")}):
        notebooks = {path.name: data for path, data in made.items() if path.parent == folder}
        released = release(repo, folder.name, notebooks)
        made |= {repo / "labs" / folder.name / name: data for name, data in released.items()}
    return made


def check(repo: Path) -> list[Drift]:
    """Every file that differs from what its source makes, is missing, or has no source."""
    made = products(repo)
    why = {True: "is not what its source makes", False: "is not built yet"}
    drifts = [Drift(path, f"{why[path.exists()]}: run `{REBUILD}`") for path in _stale(made)]
    return drifts + _strays(repo, made)


def build(repo: Path, *, overwrite: bool = False) -> tuple[list[Path], list[Drift]]:
    """Write every notebook that changed; returns what was written and what was left alone.

    A lab that someone has worked in (it holds outputs) is left alone unless ``overwrite``.
    """
    made = products(repo)
    written, kept = [], []
    for path in _stale(made):
        if path.is_relative_to(repo / "labs") and not overwrite and _has_been_run(path):
            kept.append(Drift(path, "holds outputs, so maybe someone's work: add --overwrite"))
            continue
        _replace(path, made[path])
        written.append(path)
    return written, kept + _strays(repo, made)


def _sources(repo: Path) -> list[Path]:
    return sorted(repo.glob("course/chapters/*.nb.py")) + sorted(repo.glob("solutions/*/*.nb.py"))


def _require_exercises(source: Path, notebook: NotebookNode) -> None:
    """Every check cell names an exercise and its points; raises SourceError."""
    seen: set[str] = set()
    for cell in filter(is_check, notebook.cells):
        name, meta = find_check(cell.source).exercise, cell.metadata.nbgrader
        where = f"{source}, cell {meta.grade_id!r}"
        try:
            worth = exercises.load(name).points
        except KeyError as error:
            raise SourceError(f"{where}: {error.args[0]}") from error
        if meta.points != worth:
            differ = f"says {meta.points} points, its exercise is worth {worth:g}"
            raise SourceError(f"{where}: {differ}")
        if name in seen:
            raise SourceError(f"{where}: {name} is checked by an earlier cell, too")
        seen.add(name)


def _stale(made: dict[Path, bytes]) -> list[Path]:
    return [p for p, data in sorted(made.items()) if not p.exists() or p.read_bytes() != data]


def _strays(repo: Path, made: dict[Path, bytes]) -> list[Drift]:
    """What no source made. nbgrader copies whatever lies beside a solution into labs/."""
    here = {
        path
        for pattern in ("course/chapters/**/*.ipynb", "solutions/**/*", "labs/**/*")
        for path in repo.glob(pattern)
        if not path.is_dir() and not SCRATCH & set(path.parts)
    }
    strays = sorted(here - set(made) - set(_sources(repo)))
    return [Drift(path, "is made by no source: remove it, or write its .nb.py") for path in strays]


def _has_been_run(path: Path) -> bool:
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        return any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
    except FileNotFoundError:
        return False
    except (ValueError, KeyError, TypeError, AttributeError):
        return True  # not a notebook any more: whatever it is, somebody put it there


def _replace(path: Path, content: bytes) -> None:
    """Write beside, then rename: a reader sees the old file or the new, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.part")
    beside.write_bytes(content)
    beside.replace(path)
