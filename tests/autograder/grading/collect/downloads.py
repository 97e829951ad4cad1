"""Downloads as platforms make them: {path: content} written to a zip or a folder."""

from __future__ import annotations

import json
import os
import zipfile
from datetime import UTC, datetime
from pathlib import Path

from tests.autograder.grading.copied_course import REPO

AT = datetime(2026, 10, 5, 9, 30, 0, tzinfo=UTC)
Content = bytes | str


def notebook(lab: str, answer: str = "") -> str:
    """The released lab with ``answer`` in its first code cell."""
    content = json.loads((REPO / f"labs/{lab}/{lab}.ipynb").read_text())
    next(cell for cell in content["cells"] if cell["cell_type"] == "code")["source"] = answer
    return json.dumps(content)


class _Unflagged(zipfile.ZipInfo):
    """With a name in UTF-8 that is not marked as such, as in Canvas's downloads."""

    def _encodeFilenameFlags(self) -> tuple[bytes, int]:
        return self.filename.encode(), self.flag_bits & ~0x800


def zipped(path: Path, files: dict[str, Content], at: datetime = AT) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(_Unflagged(name, at.timetuple()[:6]), content)
    return path


def folder(path: Path, files: dict[str, Content], at: datetime = AT) -> Path:
    for name, content in files.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        os.utime(file, (at.timestamp(),) * 2)
    return path
