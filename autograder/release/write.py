"""Writing the students' package: a folder, and archives that are the same bytes each time."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

LIST = ".release.json"  # {path: sha256} of all that a release wrote
MADE_LATER = {".venv", "__pycache__", ".ipynb_checkpoints"}
LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the first moment that a zip can name


class ReleaseError(Exception):
    """Why no package was made, and what to do."""


def write(files: Mapping[str, bytes], folder: Path) -> None:
    """All of ``files`` into ``folder``, in the place of an earlier release or of nothing.

    Raises ReleaseError where it holds anything else, or a release that somebody has worked in.
    """
    _require_ours(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as beside:
        new = Path(beside, "new")
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())}
        for name, content in {**files, LIST: json.dumps(digests, indent=0).encode()}.items():
            path = new / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if folder.exists():
            folder.rename(Path(beside, "old"))
        new.rename(folder)


def archives(files: Mapping[str, bytes], folder: Path) -> list[Path]:
    """``folder``.zip and ``folder``.tar.gz beside it; both unpack into a folder of its name."""
    content = {f"{folder.name}/{name}": data for name, data in sorted(files.items())}
    paths = []
    for suffix, pack in ((".zip", _zip), (".tar.gz", _tar)):
        path = folder.with_name(folder.name + suffix)
        part = path.with_name(f".{path.name}.part")
        part.write_bytes(pack(content))
        part.replace(path)
        paths.append(path)
    return paths


def _require_ours(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()  # only an empty one can be removed
    if not folder.exists():
        return
    try:
        wrote: dict[str, str] = json.loads((folder / LIST).read_bytes())
    except (OSError, ValueError):
        raise ReleaseError(
            f"{folder} holds something that no release made: name an empty folder with --to"
        ) from None
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() or MADE_LATER & set(path.relative_to(folder).parts) or name == LIST:
            continue
        if wrote.get(name) != hashlib.sha256(path.read_bytes()).hexdigest():
            raise ReleaseError(
                f"{folder}: somebody has worked there, {name} is not as a release left it: move "
                "the folder away, or name another one with --to"
            )


def _zip(content: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            entry = zipfile.ZipInfo(name, LONG_AGO)
            entry.create_system = 3  # Unix: its modes are in the archive
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return buffer.getvalue()


def _tar(content: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(filename="", fileobj=buffer, mode="wb", mtime=0) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, data in content.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
