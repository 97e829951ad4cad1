"""Opening and running a notebook leaves git clean, in a real repository."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_output

from tests.running_lab import ROOT
from tools import git_filter

CHAPTER = "chapters/00_start_here.ipynb"


def git(repo: Path, *arguments: str) -> str:
    author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(
        ["git", *author, *arguments], cwd=repo, capture_output=True, text=True, check=True
    )
    return done.stdout + done.stderr


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository as it is after git clone and make env."""
    shutil.copy(ROOT / ".gitattributes", tmp_path)
    (tmp_path / CHAPTER).parent.mkdir()
    shutil.copy(ROOT / "course" / CHAPTER, tmp_path / CHAPTER)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "course")
    assert git_filter.install(tmp_path) == ""
    return tmp_path


def save_after_a_run(path: Path, source: str = "") -> None:
    """As JupyterLab does: with outputs, execution counts, times, widgets and kernel metadata."""
    notebook = nbformat.read(path, as_version=4)
    cell = next(cell for cell in notebook.cells if cell.cell_type == "code")
    cell.execution_count = 1
    cell.outputs = [new_output("stream", text="a line of output")]
    cell.metadata["execution"] = {"iopub.status.busy": "2026-01-01T00:00:00Z"}
    cell.source = source or cell.source
    notebook.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    notebook.metadata.language_info |= {
        "version": "3.12.1",
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
    }
    nbformat.write(notebook, path)
    git_filter.after_save({"type": "notebook"}, str(path), None)


def test_an_executed_chapter_is_unchanged_for_git_and_keeps_its_outputs(clone: Path) -> None:
    save_after_a_run(clone / CHAPTER)
    assert git(clone, "status", "--porcelain") == ""
    assert "a line of output" in (clone / CHAPTER).read_text()


def append_cells(path: Path, *sources: str) -> None:
    notebook = nbformat.read(path, as_version=4)
    notebook.cells += [new_code_cell(source) for source in sources]
    nbformat.write(notebook, path)
    git_filter.after_save({"type": "notebook"}, str(path), None)


def test_an_empty_cell_after_the_last_one_is_unchanged_for_git(clone: Path) -> None:
    append_cells(clone / CHAPTER, "", " \n")
    assert git(clone, "status", "--porcelain") == ""
    append_cells(clone / CHAPTER, "typed = 1")
    assert git(clone, "status", "--porcelain") == f" M {CHAPTER}\n"


def test_git_sees_an_edited_cell_and_commits_no_output(clone: Path) -> None:
    save_after_a_run(clone / CHAPTER, source="edited = True")
    assert git(clone, "status", "--porcelain") == f" M {CHAPTER}\n"
    git(clone, "add", CHAPTER)
    staged = git(clone, "show", f":{CHAPTER}")
    assert "edited = True" in staged
    assert "a line of output" not in staged


def test_without_the_environment_git_still_works(clone: Path) -> None:
    git(clone, "config", git_filter.SETTING, git_filter.command(str(clone / "gone/bin/python")))
    save_after_a_run(clone / CHAPTER)
    assert git(clone, "status", "--porcelain") == f" M {CHAPTER}\n"


def test_a_course_outside_a_repository_needs_no_filter(tmp_path: Path) -> None:
    assert git_filter.install(tmp_path) == ""
    assert list(tmp_path.iterdir()) == []
