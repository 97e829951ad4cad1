"""Files that are no notebooks are told apart, and none is followed elsewhere."""

import json
import os
from pathlib import Path

import pytest

from autograder.grading import reader
from autograder.grading.reader import Unreadable, read_submission


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'{"cells": 5, "nbformat": 4}', b"\xff\xfe", b'{"nbformat": 99}'],
)
def test_what_is_no_notebook_is_unreadable(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "lab.ipynb"
    path.write_bytes(content)
    with pytest.raises(Unreadable, match="not a Jupyter notebook"):
        read_submission(str(path))


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("{}")
    (tmp_path / "link.ipynb").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe.ipynb")
    for name in ("link.ipynb", "pipe.ipynb"):
        with pytest.raises(Unreadable):
            read_submission(str(tmp_path / name))


def test_a_giant_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_BYTES", 10)
    (tmp_path / "lab.ipynb").write_bytes(b"x" * 11)
    with pytest.raises(Unreadable, match="larger than"):
        read_submission(str(tmp_path / "lab.ipynb"))


def test_cells_that_are_none_are_left_out(tmp_path: Path) -> None:
    cells = [7, {"cell_type": "code"}, {"cell_type": "code", "metadata": {}, "source": "1"}]
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}
    path = tmp_path / "lab.ipynb"
    path.write_text(json.dumps(notebook))
    try:
        found = read_submission(str(path)).cells
    except Unreadable:  # nbformat may refuse the first of them outright: just as well
        return
    assert [cell.source for cell in found] == ["1"]
