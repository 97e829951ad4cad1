"""Every generated notebook of the repository: what it should hold, and writing it safely."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autograder.build.lab import require_exercises
from autograder.build.release import RefusedByNbgrader, released
from autograder.build.text import SourceError, notebook_bytes, notebook_from_text

REBUILD = "python -m autograder build"
SCRATCH = (".ipynb_checkpoints", "__pycache__")  # git does not see them either


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
                require_exercises(source, notebook)
            made[_product_of(source)] = notebook_bytes(notebook)
        except SourceError as error:
            broken.append(str(error))
    if broken:
        raise SourceError("\n".join(broken))

    solutions = sorted(path for path in made if path.is_relative_to(repo / "solutions"))
    for lab in sorted({path.parent.name for path in solutions}):
        notebooks = {path.name: made[path] for path in solutions if path.parent.name == lab}
        try:
            lab_files = released(repo, lab, notebooks)
        except RefusedByNbgrader as error:
            raise SourceError(f"{repo / 'solutions' / lab}: nbgrader refused it:\n{error}") from (
                error
            )
        made.update({repo / "labs" / lab / name: data for name, data in lab_files.items()})
    return made


def check(repo: Path) -> list[Drift]:
    """Every file that differs from what its source makes, is missing, or has no source."""
    made = products(repo)
    drifts = []
    for path, content in sorted(made.items()):
        if not path.exists():
            drifts.append(Drift(path, f"is not built yet: run `{REBUILD}`"))
        elif path.read_bytes() != content:
            drifts.append(Drift(path, f"is not what its source makes: run `{REBUILD}`"))
    return drifts + _strays(repo, made)


def build(repo: Path, *, overwrite: bool = False) -> tuple[list[Path], list[Drift]]:
    """Write every notebook that changed; returns what was written and what was left alone.

    A lab that someone has worked in (it holds outputs) is left alone unless ``overwrite``.
    """
    made = products(repo)
    written, kept = [], []
    for path, content in sorted(made.items()):
        if path.exists() and path.read_bytes() == content:
            continue
        if path.is_relative_to(repo / "labs") and not overwrite and _has_been_run(path):
            kept.append(Drift(path, "holds outputs, so maybe someone's work: add --overwrite"))
            continue
        _replace(path, content)
        written.append(path)
    return written, kept + _strays(repo, made)


def _sources(repo: Path) -> list[Path]:
    chapters = (repo / "course" / "chapters").glob("*.nb.py")
    solutions = (repo / "solutions").glob("*/*.nb.py")
    return [*sorted(chapters), *sorted(solutions)]


def _product_of(source: Path) -> Path:
    return source.with_name(source.name.removesuffix(".nb.py") + ".ipynb")


def _strays(repo: Path, made: dict[Path, bytes]) -> list[Drift]:
    """What no source made. nbgrader copies whatever lies beside a solution into labs/."""
    here = [
        *_files(repo / "course" / "chapters", "*.ipynb"),
        *_files(repo / "solutions", "*"),
        *_files(repo / "labs", "*"),
    ]
    strays = sorted(set(here) - set(made) - set(_sources(repo)))
    return [Drift(path, "is made by no source: remove it, or write its .nb.py") for path in strays]


def _files(folder: Path, pattern: str) -> Iterator[Path]:
    for path in folder.rglob(pattern):
        if not path.is_dir() and not set(path.parts) & set(SCRATCH):
            yield path


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
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(beside, 0o644)
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise
