"""Find the launchers for many nodes that tests run, or install them: Slurm, and pdsh for DeepSpeed.

    python -m tools.launchers      prints their paths; as root installs Debian's packages if needed

If some are missing, exits with status 1 and one line on stderr; their tests are then skipped.
"""

from __future__ import annotations

import os
import shutil
import sys

from tools import debian

PACKAGES = {"pdsh": "pdsh", "sbatch": "slurm-client", "slurmctld": "slurmctld", "slurmd": "slurmd"}
SBIN = "/usr/sbin"  # Debian has the daemons here, which is not on every user's PATH


def find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ['PATH']}:{SBIN}")


def missing(*programs: str) -> str:
    """Why tests that need these programs are skipped; "" if all are there."""
    lacking = [name for name in programs if not find(name)]
    return f"found no {' or '.join(lacking)}: their tests are skipped" if lacking else ""


def main() -> int:
    if missing(*PACKAGES):
        debian.install("launchers for many nodes", *PACKAGES.values())
    if why := missing(*PACKAGES):
        print(why, file=sys.stderr)
        return 1
    print(*map(find, PACKAGES), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
