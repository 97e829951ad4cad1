"""The seed of a lab's grading: unknown to students, the same for everyone and each time."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path


def grading_seed(folder: Path, lab: str) -> int:
    """Drawn from a secret in ``folder``, made at its first use: keep it, and grades repeat.

    Of 62 bits: visible cases show students some of what is drawn, and nobody should find the seed
    by trying them all.
    """
    digest = hashlib.sha256(f"{_secret(folder)}/{lab}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2


def _secret(folder: Path) -> str:
    path = folder / "seed"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        beside = folder / f".seed.{os.getpid()}"
        beside.write_text(secrets.token_hex(16) + "\n")
        beside.chmod(0o600)
        try:
            os.link(beside, path)  # fails where another grader was first; then that one counts
        except FileExistsError:
            pass
        finally:
            beside.unlink()
    return path.read_text().strip()
