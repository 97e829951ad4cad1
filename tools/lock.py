"""Write requirements.lock: the exact version of everything that pyproject.toml asks for.

    make lock

pip's own resolver decides, in a fresh environment and with this machine's pip settings. Local
version parts (+cpu, +cu130) and the CUDA packages below torch are left out of the lock: which build
of torch suits a machine, and which CUDA packages that build wants, is for pip to find out there.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
# Only torch's CUDA builds want these, each an exact version.
CUDA_PACKAGES = re.compile(r"(nvidia|cuda)-.*|triton")
DRY_RUN = ("--dry-run", "--ignore-installed", "--quiet", "--no-input", "--report")

HEADER = """\
# Every package of the course, pinned. Made by `make lock` from pyproject.toml; not edited by hand.
# Resolved by pip on Python {python}, the oldest that is supported. torch carries no +cpu or +cu
# part and its CUDA packages are not listed: pip takes the build that the machine offers.
"""


def direct_requirements(pyproject: Path) -> list[str]:
    """What pyproject.toml asks for itself, the optional groups included."""
    project = tomllib.loads(pyproject.read_text())["project"]
    groups = project.get("optional-dependencies", {}).values()
    return [*project["dependencies"], *(line for group in groups for line in group)]


def oldest_python(pyproject: Path) -> str:
    """ "3.11" of `requires-python = ">=3.11"`."""
    return tomllib.loads(pyproject.read_text())["project"]["requires-python"].removeprefix(">=")


def resolve(requirements: list[str]) -> dict[str, str]:
    """Ask pip, in an environment of its own, what it would install: {name: version}."""
    with tempfile.TemporaryDirectory(prefix="shardlab-lock-") as scratch:
        venv.create(scratch, with_pip=True)
        report = Path(scratch, "report.json")
        asked = subprocess.run(
            [f"{scratch}/bin/python", "-m", "pip", "install", *DRY_RUN, str(report), *requirements],
            stderr=subprocess.PIPE,
            text=True,
        )
        if asked.returncode:
            sys.exit(f"{asked.stderr}\npip found no set of versions: see its words above")
        found = [entry["metadata"] for entry in json.loads(report.read_text())["install"]]
    return {package["name"]: package["version"] for package in found}


def lock_text(versions: dict[str, str], python: str) -> str:
    """The lock file's text: one pin a line, without what differs from machine to machine."""
    pins = {
        re.sub(r"[-_.]+", "-", name).lower(): version.partition("+")[0]
        for name, version in versions.items()
    }
    kept = sorted(name for name in pins if not CUDA_PACKAGES.fullmatch(name))
    return HEADER.format(python=python) + "".join(f"{name}=={pins[name]}\n" for name in kept)


def main() -> None:
    pyproject = ROOT / "pyproject.toml"
    python = oldest_python(pyproject)
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if here != python:
        # A newer Python may be offered versions that the oldest one cannot install.
        sys.exit(
            f"shardlab: the lock is made on Python {python} and this is {here}: "
            f"say `make lock PYTHON=python{python}`"
        )
    print("asking pip for the newest versions that fit together (about a minute)", flush=True)
    LOCK.write_text(lock_text(resolve(direct_requirements(pyproject)), python))
    print(f"wrote {LOCK.name}: read the difference, then run `make test`")


if __name__ == "__main__":
    main()
