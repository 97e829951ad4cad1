"""Files that are not notebooks are recognized, and no link is followed."""

import contextlib
import json
import os
import time
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from autograder.grading.submission import attachments, reader
from autograder.grading.submission.files import Unreadable
from autograder.grading.submission.reader import read_content, read_notebook


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'{"cells": 5, "nbformat": 4}', b"\xff\xfe", b'{"nbformat": 99}'],
)
def test_a_file_that_is_not_a_notebook_is_unreadable(content: bytes) -> None:
    with pytest.raises(Unreadable, match=r"not a Jupyter notebook|empty"):
        read_notebook(content)


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("{}")
    (tmp_path / "link.ipynb").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe.ipynb")
    os.link(tmp_path / "secret", tmp_path / "hard.ipynb")
    for name in ("link.ipynb", "pipe.ipynb", "hard.ipynb"):
        with pytest.raises(Unreadable):
            read_content(tmp_path / name)


def test_a_huge_file_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_BYTES", 10)
    (tmp_path / "lab.ipynb").write_bytes(b"x" * 11)
    with pytest.raises(Unreadable, match="larger than"):
        read_content(tmp_path / "lab.ipynb")


def test_invalid_cells_are_left_out() -> None:
    cells = [7, {"cell_type": 1}, {"cell_type": "code", "source": 4}, {"source": "2"}, None, [[]]]
    good = {"cell_type": "code", "metadata": {}, "source": ["1"]}
    notebook, _ = read_notebook(json.dumps({"cells": [*cells, good]}).encode())
    assert [cell.source for cell in notebook.cells] == ["1"]


def test_the_number_of_cells_is_limited() -> None:
    cells = [{"cell_type": "code"}] * (reader.MAX_CELLS + 1)
    notebook, notes = read_notebook(json.dumps({"cells": cells}).encode())
    assert len(notebook.cells) == reader.MAX_CELLS
    assert "Only the first 2,000 of 2,001 cells were read" in notes[0]


def bomb(inside: bytes, name: str = "a.ipynb", method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr(name, inside)
    return buffer.getvalue()


HOSTILE = {
    "deep lists": b"[" * 200_000,
    "deep cells": b'{"cells": [' + b'{"id":' * 200_000,
    "deep, in order": b'{"cells":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "unterminated quotes": b'{"cells": [' + b'\\"' * 1_000_000,
    "commas": b'{"cells": [' + b", " * 500_000,
    "spaces": b'{"cells": [,' + b" " * 3_000_000,
    "an endless number": b'{"cells": ' + b"9" * 1_000_000 + b"}",
    "script of quotes": b"def f(): pass\n" + b'\\"""' * 1_000_000,
    "script of comments": b"def f(): pass\n" + b"\n\n# a\n\n" * 50_000,
    "zip of zeros": bomb(bytes(30_000_000)),
    "zip in a zip": bomb(bomb(b"{}")),
    "zip of an unusual kind": bomb(b"{}", method=zipfile.ZIP_LZMA),
    "zip with a path outside its folder": bomb(b"no notebook", name="../../../etc/cron.d/x.ipynb"),
    "zip cut short": bomb(b"{}" * 9000)[:60],
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_rejected_quickly(kind: str) -> None:
    start_s = time.process_time()
    with (
        contextlib.suppress(Unreadable) if kind.startswith("script") else pytest.raises(Unreadable)
    ):
        read_notebook(HOSTILE[kind])
    assert time.process_time() - start_s < 10  # some took hours


def pictures_of(attachments: object, source: str) -> object:
    cell = {"cell_type": "markdown", "source": source, "attachments": attachments}
    notebook, _ = read_notebook(json.dumps({"cells": [cell]}).encode())
    return notebook.cells[0].get("attachments")


def test_pictures_that_the_text_shows_are_kept() -> None:
    image = {"image/png": "AAAA", "text/html": "<b>"}
    attachments = {"a.png": image, "b c.png": {"image/gif": ["AA", "BB"]}, "unused.png": image}
    assert pictures_of(attachments, "![](attachment:a.png) ![](attachment:b%20c.png)") == {
        "a.png": {"image/png": "AAAA"},
        "b c.png": {"image/gif": "AABB"},
    }


@pytest.mark.parametrize(
    "attachments",
    [
        7, [], "a.png", {"a.png": None}, {"a.png": []}, {"a.png": {"image/png": 3}}, {"": {}},
        {"a.png": {"image/png": {"a": []}}}, {"a.png": {"x" * 10_000: "AAAA"}},
        {"a\udc80.png": {"image/png": "AAAA"}}, {"b.png": {"image/png": "AAAA"}},
    ],
)  # fmt: skip
def test_attachments_of_any_type_can_be_read(attachments: object) -> None:
    source = "![](attachment:a.png) ![](attachment:) ![](attachment:a\udc80.png)"
    assert pictures_of(attachments, source) is None


def test_the_total_size_of_pictures_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachments, "MAX_CHARS", 2_000_000)
    cell = {
        "cell_type": "markdown",
        "source": "![](attachment:a.png)",
        "attachments": {"a.png": {"image/png": "A" * 1_500_000}},
    }
    notebook, notes = read_notebook(json.dumps({"cells": [cell, cell]}).encode())
    assert [bool(cell.attachments) for cell in notebook.cells] == [True, False]
    assert notes == ["Pictures left out: 1, because together they were larger than 1.5 MB."]
