"""Builds all generated notebooks of the repository and writes them safely."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import nbformat
from nbformat import NotebookNode

from autograder.build.front_page import add_map
from autograder.build.lab import REBUILD, lab_from_text
from autograder.build.navigation import add_links
from autograder.build.release import release
from autograder.build.rubric import RUBRIC
from autograder.build.text import SourceError, notebook_bytes, notebook_from_text
from autograder.build.times import read_times
from autograder.course import pages
from autograder.course.pages import FRONT_PAGE, Course

SCRATCH = {".ipynb_checkpoints", "__pycache__"}  # git ignores them, too


@dataclass(frozen=True)
class Drift:
    """A file that differs from its build; ``why`` follows the path in a message."""

    path: Path
    why: str


def products(repo: Path) -> dict[Path, bytes]:
    """{path: bytes} of all notebooks built from the sources in ``repo``.

    Reads all sources before it raises SourceError, which lists all broken ones.
    """
    notebooks: dict[Path, NotebookNode] = {}
    broken: list[str] = []
    for source in _sources(repo):
        try:
            is_lab = source.is_relative_to(repo / "solutions")
            notebook = lab_from_text(source) if is_lab else notebook_from_text(source)
            notebooks[source.with_name(source.name.replace(".nb.py", ".ipynb"))] = notebook
        except SourceError as error:
            broken.append(str(error))
    if broken:
        raise SourceError("\n".join(broken))
    _add_links(repo, notebooks)
    made = {path: notebook_bytes(notebook) for path, notebook in notebooks.items()}

    for folder in sorted({path.parent for path in made if path.is_relative_to(repo / "solutions")}):
        in_folder = {path.name: data for path, data in made.items() if path.parent == folder}
        released = release(repo, folder.name, in_folder)
        made |= {repo / "labs" / folder.name / name: data for name, data in released.items()}
    front_page = repo / f"{FRONT_PAGE}.ipynb"
    if front_page in notebooks:
        notebook = notebooks[front_page]
        as_students_get_them = {path: nbformat.reads(data, 4) for path, data in made.items()}
        add_map(notebook, _course(repo, as_students_get_them), read_times(repo))
        made[front_page] = notebook_bytes(notebook)
    return made


def _add_links(repo: Path, notebooks: dict[Path, NotebookNode]) -> None:
    """Add links to all chapters and labs. Students get a lab in labs/, so its links start there."""
    as_released = {
        repo / "labs" / path.relative_to(repo / "solutions")
        if path.is_relative_to(repo / "solutions")
        else path: notebook
        for path, notebook in notebooks.items()
    }
    course = _course(repo, as_released)
    for page in (*course.chapters, *course.labs.values()):
        has_map = repo / f"{FRONT_PAGE}.ipynb" in notebooks
        add_links(as_released[repo / page.path], page, course, has_map=has_map)


def _course(repo: Path, notebooks: dict[Path, NotebookNode]) -> Course:
    """The chapters and labs among ``notebooks``."""
    return pages.course(
        {
            PurePosixPath(path.relative_to(repo)): [cell.source for cell in notebook.cells]
            for path, notebook in notebooks.items()
        }
    )


def check(repo: Path) -> list[Drift]:
    """All files that are out of date, missing, or without a source."""
    made = products(repo)
    why = {True: "is out of date", False: "is not built yet"}
    drifts = [Drift(path, f"{why[path.exists()]}: run `{REBUILD}`") for path in _stale(made)]
    return drifts + _without_source(repo, made)


def build(repo: Path, *, overwrite: bool = False) -> tuple[list[Path], list[Drift]]:
    """Write all notebooks that changed; returns what was written and what was left unchanged.

    A lab that someone has worked in (it has outputs) is left unchanged unless ``overwrite``.
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
    return written, kept + _without_source(repo, made)


def _sources(repo: Path) -> list[Path]:
    patterns = ("course/*.nb.py", "course/chapters/*.nb.py", "solutions/*/*.nb.py")
    return [path for pattern in patterns for path in sorted(repo.glob(pattern))]


def _stale(made: dict[Path, bytes]) -> list[Path]:
    return [p for p, data in sorted(made.items()) if not p.exists() or p.read_bytes() != data]


def _without_source(repo: Path, made: dict[Path, bytes]) -> list[Drift]:
    """Files without a source. nbgrader copies everything next to a solution into labs/, except for
    what nbgrader_config.py ignores: the sources and a lab's rubric."""
    here = {
        path
        for pattern in (
            "course/*.ipynb",
            "course/chapters/**/*.ipynb",
            "solutions/**/*",
            "labs/**/*",
        )
        for path in repo.glob(pattern)
        if not path.is_dir() and not SCRATCH & set(path.parts)
    }
    rubrics = set(repo.glob(f"solutions/*/{RUBRIC}"))
    orphans = sorted(here - set(made) - set(_sources(repo)) - rubrics)
    return [Drift(path, "has no source: remove it, or write its .nb.py") for path in orphans]


def _has_been_run(path: Path) -> bool:
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        return any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
    except FileNotFoundError:
        return False
    except (ValueError, KeyError, TypeError, AttributeError):
        return True  # no longer a notebook: someone replaced it


def _replace(path: Path, content: bytes) -> None:
    """Write a temporary file, then rename it: no reader sees a partial file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.part")
    partial.write_bytes(content)
    partial.replace(path)
