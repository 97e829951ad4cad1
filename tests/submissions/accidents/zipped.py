"""The notebook was submitted as a zip, with macOS's extra files in it."""

import io
import json
import zipfile
from pathlib import Path

from tests.submissions.accidents.editing import NAME, Notebook, save

SAYS = "You submitted a zip"


def submit(notebook: Notebook, folder: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"lab/{NAME}", json.dumps(notebook))
        archive.writestr(f"__MACOSX/lab/._{NAME}", b"\x00\x05\x16\x07")
        archive.writestr(f"lab/.ipynb_checkpoints/{NAME}", "{}")
    save(buffer.getvalue(), folder, "my lab.zip")
