"""Writes the students' package: a folder, and reproducible archives."""

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

from autograder.grading.csv_tables import write_atomically

MANIFEST = ".release.json"  # {path: sha256} of every file in the release
NOT_RELEASED = {".venv", "__pycache__", ".ipynb_checkpoints"}
ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can store


class ReleaseError(Exception):
    """The message says why no package was written, and what to do."""


def write(files: Mapping[str, bytes], folder: Path) -> None:
    """Write ``files`` to ``folder``, replacing an earlier release if there is one.

    Raises ReleaseError if the folder contains anything else, or a release with changed files.
    """
    _require_unchanged_release(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        new = Path(temporary, "new")
        for name, content in {**files, MANIFEST: manifest(files)}.items():
            path = new / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if folder.exists():
            folder.rename(Path(temporary, "old"))
        new.rename(folder)


def manifest(files: Mapping[str, bytes]) -> bytes:
    """The content of MANIFEST, which lets `make update` detect what a student has changed."""
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())}
    return json.dumps(digests, indent=0).encode()


def archives(files: Mapping[str, bytes], folder: Path) -> list[Path]:
    """Write ``folder``.zip and ``folder``.tar.gz; both unpack into a folder of the same name."""
    content = {f"{folder.name}/{name}": data for name, data in sorted(files.items())}
    paths = []
    for suffix, pack in ((".zip", _zip), (".tar.gz", _tar)):
        path = folder.with_name(folder.name + suffix)
        write_atomically(path, pack(content))
        paths.append(path)
    return paths


def _require_unchanged_release(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()  # succeeds only if it is empty
    if not folder.exists():
        return
    try:
        released: dict[str, str] = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        raise ReleaseError(
            f"{folder} contains files that are not from a release: choose an empty folder with --to"
        ) from None
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_dir() or NOT_RELEASED & set(path.relative_to(folder).parts) or name == MANIFEST:
            continue
        if released.get(name) != hashlib.sha256(path.read_bytes()).hexdigest():
            raise ReleaseError(
                f"{folder}: {name} has changed since the release, so someone has worked in this "
                "folder. Move it elsewhere, or choose another one with --to"
            )


def _zip(content: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            entry = zipfile.ZipInfo(name, ZIP_EPOCH)
            entry.create_system = 3  # Unix: the archive has file modes
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return buffer.getvalue()


def _tar(content: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(filename="", fileobj=buffer, mode="wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, data in content.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
