"""How a line of code is described."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from autograder.guest.on_rank import formula_results
from shardlab import launch
from shardlab.display.source import is_user_code, locate, quoted


def test_a_file_in_the_working_folder_has_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "step.py").write_text("import torch\n    dist.barrier()  \n")
    monkeypatch.chdir(tmp_path)
    path = str(tmp_path / "step.py")
    assert locate(path, 2) == ("step.py, line 2", "dist.barrier()")
    assert quoted(path, 2) == "step.py, line 2: dist.barrier()"


def test_a_file_elsewhere_keeps_its_full_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert locate(str(tmp_path / "step.py"), 1)[0] == f"{tmp_path / 'step.py'}, line 1"


def test_a_file_that_cannot_be_read_has_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    assert quoted("/nowhere/step.py", 7) == "/nowhere/step.py, line 7"


def test_an_unknown_line_is_an_empty_string() -> None:
    assert locate("", 0) == ("", "")
    assert quoted("", 0) == ""


def test_a_cell_is_named_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def format_code_name(name: str) -> tuple[str, str] | None:
        return ("Cell", "In[5]") if name == "/tmp/ipykernel_1/2.py" else None

    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=format_code_name))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert locate("/tmp/ipykernel_1/2.py", 3)[0] == "cell 5, line 3"
    assert locate("/elsewhere/a.py", 3)[0] == "/elsewhere/a.py, line 3"


def test_packages_of_the_course_are_not_user_code() -> None:
    """A student's error names the student's line, not the line of the check that called it."""
    assert not is_user_code(launch.__code__.co_filename)
    assert not is_user_code(formula_results.__code__.co_filename)
    assert is_user_code("/home/a_student/autograder/step.py")
