"""Install a newer students' package in this folder, but keep the notebooks that you changed.

    make update FROM=~/Downloads/shardlab-students.zip

A notebook that differs from the one in its package is a student's work and is kept. All other files
are replaced, including the front page, which only shows results. This script uses only the standard
library, so it can run before the environment exists.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import zipfile
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
MANIFEST = ".release.json"  # {path: sha256} of the package that this folder came from
FRONT_PAGE = "course/front_page.ipynb"  # contains no work, and its map lists the released labs


class UpdateError(Exception):
    """The message says why nothing was changed, and what to do."""


def main(arguments: list[str]) -> int:
    try:
        if len(arguments) != 1 or not arguments[0]:
            raise UpdateError("name the new package: make update FROM=shardlab-students.zip")
        written, kept = update(ROOT, Path(arguments[0]).expanduser())
    except (UpdateError, OSError) as error:
        print(f"shardlab: {error}", file=sys.stderr)
        return 1
    print(
        "1 file is new or changed"
        if len(written) == 1
        else f"{len(written)} files are new or changed"
    )
    for name in written:
        if name.startswith("labs/"):
            print(f"  {name}")
    for name in kept:
        print(f"kept {name}: you ran or changed it")
    return 0


def update(root: Path, archive: Path) -> tuple[list[str], list[str]]:
    """Returns the files that were written, and the notebooks kept because they were run or changed.

    Raises UpdateError, before anything is changed, if ``archive`` is not a students' package.
    """
    new = _read(archive)
    try:
        before: dict[str, str] = json.loads((root / MANIFEST).read_bytes())
    except (OSError, ValueError):
        before = {}  # so every notebook that differs counts as changed
    written, kept = [], []
    for name, content in new.items():
        path = root / name
        here = path.read_bytes() if path.exists() else None
        if here == content:
            continue
        is_work = here is not None and before.get(name) != hashlib.sha256(here).hexdigest()
        if name.endswith(".ipynb") and name != FRONT_PAGE and is_work:
            kept.append(name)
        else:
            written.append(name)
    # The manifest comes last: after an interrupt, the next run continues.
    for name in sorted(written, key=lambda name: name == MANIFEST):
        _write(root / name, new[name])
    return [name for name in written if name != MANIFEST], kept


def _read(archive: Path) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(archive) as packed:
            files = {
                PurePosixPath(*PurePosixPath(name).parts[1:]): packed.read(name)
                for name in packed.namelist()
                if not name.endswith("/")
            }
    except (zipfile.BadZipFile, FileNotFoundError) as error:
        todo = "download it again"
        if ".tar" in archive.suffixes or archive.suffix == ".tgz":
            todo = "use the .zip, which your course also provides"
        raise UpdateError(f"{archive} cannot be read ({error}): {todo}") from None
    if PurePosixPath(MANIFEST) not in files or any(
        ".." in path.parts or path.is_absolute() for path in files
    ):
        raise UpdateError(
            f"{archive} is not a students' package (the .zip that your course provides)"
        )
    return {str(path): content for path, content in files.items()}


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.part")
    partial.write_bytes(content)
    os.replace(partial, path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
