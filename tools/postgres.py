"""Find PostgreSQL's server for the tests, or get it.

    python -m tools.postgres            prints the folder of its programs; installs it if need be
    python -m tools.postgres --find     only looks

Looked for in this order: $SHARDLAB_POSTGRES (a folder with initdb in it), the PATH, where Debian,
Red Hat and Homebrew put it. Installed where we are root and have apt. Exits 1 with one line on
stderr where it cannot be had: the tests then skip, they do not fail.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from tools import debian

PLACES = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql*/bin",
    "/usr/local/opt/postgresql*/bin",
)
# Debian would start a server of its own, on port 5432, as soon as the package is there.
NO_SERVER = Path("/etc/postgresql-common/createcluster.d/shardlab.conf")
NONE = "no PostgreSQL server here and none could be installed: its tests are skipped"


def find() -> Path | None:
    """The folder with initdb and postgres, or None."""
    wanted = os.environ.get("SHARDLAB_POSTGRES")
    on_path = shutil.which("initdb")
    folders = [Path(wanted)] if wanted else [Path(on_path).resolve().parent] if on_path else []
    if not wanted:
        folders += [folder for place in PLACES for folder in sorted(Path("/").glob(place[1:]))]
    return next((folder for folder in folders if has_server(folder)), None)


def has_server(folder: Path) -> bool:
    return all((folder / program).exists() for program in ("initdb", "postgres"))


def get() -> Path | None:
    """The folder, installed now if need be, or None where that cannot be done."""
    return find() or (find() if _install() else None)


def _install() -> bool:
    if debian.can_install():
        NO_SERVER.parent.mkdir(parents=True, exist_ok=True)
        NO_SERVER.write_text("create_main_cluster = false\n")
    return debian.install("PostgreSQL for the tests", "postgresql")


def main() -> int:
    folder = find() if "--find" in sys.argv[1:] else get()
    print(folder or NONE, file=sys.stdout if folder else sys.stderr)
    return 0 if folder else 1


if __name__ == "__main__":
    sys.exit(main())
