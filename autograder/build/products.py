"""Every generated notebook in the repository: its content, and writing it safely."""

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
SCRATCH = {".ipynb_checkpoints", "__pycache__"}  # git ignores them, too


@dataclass(frozen=True)
class Drift:
    """A file that differs from what its source builds; ``why`` follows its path in a message."""

    path: Path
    why: str


def products(repo: Path) -> dict[Path, bytes]:
    """{path: bytes} of every notebook built from the sources in ``repo``.

    Reads all sources before it raises SourceError, which names every broken one.
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
    """Every file that is out of date, is missing, or has no source."""
    made = products(repo)
    why = {True: "is out of date", False: "is not built yet"}
    drifts = [Drift(path, f"{why[path.exists()]}: run `{REBUILD}`") for path in _stale(made)]
    return drifts + _strays(repo, made)


def build(repo: Path, *, overwrite: bool = False) -> tuple[list[Path], list[Drift]]:
    """Write every notebook that changed; returns what was written and what was left alone.

    A lab that someone has worked in (it has outputs) is left alone unless ``overwrite``.
    """
    made = products(repo)
    written, kept = [], []
    for path in _stale(made):
        if path.is_relative_to(repo / "labs") and not overwrite and _has_been_run(path):
            kept.append(
                Drift(path, "has outputs, maybe someone's work: to replace it, add --overwrite")
            )
            continue
        _replace(path, made[path])
        written.append(path)
    return written, kept + _strays(repo, made)


def _sources(repo: Path) -> list[Path]:
    return sorted(repo.glob("course/chapters/*.nb.py")) + sorted(repo.glob("solutions/*/*.nb.py"))


def _require_exercises(source: Path, notebook: NotebookNode) -> None:
    """Every check cell must name an exercise and its points; raises SourceError."""
    seen: set[str] = set()
    for cell in filter(is_check, notebook.cells):
        name, meta = find_check(cell.source).exercise, cell.metadata.nbgrader
        where = f"{source}, cell {meta.grade_id!r}"
        try:
            worth = exercises.load(name).points
        except KeyError as error:
            raise SourceError(f"{where}: {error.args[0]}") from error
        if meta.points != worth:
            mismatch = f"has {meta.points} points, but its exercise is worth {worth:g}"
            raise SourceError(f"{where}: {mismatch}")
        if name in seen:
            raise SourceError(f"{where}: an earlier cell already checks {name}")
        seen.add(name)


def _stale(made: dict[Path, bytes]) -> list[Path]:
    return [p for p, data in sorted(made.items()) if not p.exists() or p.read_bytes() != data]


def _strays(repo: Path, made: dict[Path, bytes]) -> list[Drift]:
    """Files without a source. nbgrader copies everything next to a solution into labs/."""
    here = {
        path
        for pattern in ("course/chapters/**/*.ipynb", "solutions/**/*", "labs/**/*")
        for path in repo.glob(pattern)
        if not path.is_dir() and not SCRATCH & set(path.parts)
    }
    strays = sorted(here - set(made) - set(_sources(repo)))
    return [Drift(path, "has no source: remove it, or write its .nb.py") for path in strays]


def _has_been_run(path: Path) -> bool:
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        return any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
    except FileNotFoundError:
        return False
    except (ValueError, KeyError, TypeError, AttributeError):
        return True  # no longer a notebook: somebody replaced it


def _replace(path: Path, content: bytes) -> None:
    """Write a temporary file, then rename it: no reader sees a partial file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.part")
    partial.write_bytes(content)
    partial.replace(path)
