"""Find a PostgreSQL server for the tests, or install one.

    python -m tools.postgres            prints the folder of its programs; installs it if needed
    python -m tools.postgres --find     only searches

Searches in this order: $SHARDLAB_POSTGRES (a folder that contains initdb), the PATH, and the
folders that Debian, Red Hat and Homebrew use. Installs it as root with apt. Without a server it
exits with status 1 and one line on stderr; the tests are then skipped.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from tools import debian

PATTERNS = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql*/bin",
    "/usr/local/opt/postgresql*/bin",
)
# Keeps Debian from starting a server on port 5432 as soon as the package is installed.
CREATE_CLUSTER_CONFIG = Path("/etc/postgresql-common/createcluster.d/shardlab.conf")
NONE = "found no PostgreSQL server and could not install one: its tests are skipped"


def find() -> Path | None:
    """The folder with initdb and postgres, or None."""
    wanted = os.environ.get("SHARDLAB_POSTGRES")
    on_path = shutil.which("initdb")
    folders = [Path(wanted)] if wanted else [Path(on_path).resolve().parent] if on_path else []
    if not wanted:
        folders += [folder for path in PATTERNS for folder in sorted(Path("/").glob(path[1:]))]
    return next((folder for folder in folders if has_server(folder)), None)


def has_server(folder: Path) -> bool:
    return all((folder / program).exists() for program in ("initdb", "postgres"))


def get() -> Path | None:
    """The folder, with PostgreSQL installed first if needed; None if that fails."""
    return find() or (find() if _install() else None)


def _install() -> bool:
    if debian.can_install():
        CREATE_CLUSTER_CONFIG.parent.mkdir(parents=True, exist_ok=True)
        CREATE_CLUSTER_CONFIG.write_text("create_main_cluster = false\n")
    return debian.install("PostgreSQL for the tests", "postgresql")


def main() -> int:
    folder = find() if "--find" in sys.argv[1:] else get()
    print(folder or NONE, file=sys.stdout if folder else sys.stderr)
    return 0 if folder else 1


if __name__ == "__main__":
    sys.exit(main())
