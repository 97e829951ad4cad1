"""Write requirements.lock: exact versions of all packages that pyproject.toml requires.

    make lock

pip resolves the versions in a fresh environment, with this machine's pip settings. The lock omits
local version labels (+cpu, +cu130) and torch's CUDA dependencies: on each machine pip chooses the
build of torch and the CUDA packages it needs.
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
# Only torch's CUDA builds need these; each build pins their versions.
CUDA_PACKAGES = re.compile(r"(nvidia|cuda)-.*|triton")
DRY_RUN = ("--dry-run", "--ignore-installed", "--quiet", "--no-input", "--report")

HEADER = """\
# Every package of the course, pinned. Made by `make lock` from pyproject.toml; not edited by hand.
# Resolved by pip on Python {python}, the oldest that is supported. torch carries no +cpu or +cu
# part and its CUDA packages are not listed: pip takes the build that the machine offers.
"""


def direct_requirements(pyproject: Path) -> list[str]:
    """The requirements in pyproject.toml, including the optional groups."""
    project = tomllib.loads(pyproject.read_text())["project"]
    groups = project.get("optional-dependencies", {}).values()
    return [*project["dependencies"], *(line for group in groups for line in group)]


def oldest_python(pyproject: Path) -> str:
    """ "3.11" from `requires-python = ">=3.11"`."""
    return tomllib.loads(pyproject.read_text())["project"]["requires-python"].removeprefix(">=")


def resolve(requirements: list[str]) -> dict[str, str]:
    """What pip would install in a fresh environment: {name: version}."""
    with tempfile.TemporaryDirectory(prefix="shardlab-lock-") as scratch:
        venv.create(scratch, with_pip=True)
        report = Path(scratch, "report.json")
        done = subprocess.run(
            [f"{scratch}/bin/python", "-m", "pip", "install", *DRY_RUN, str(report), *requirements],
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            sys.exit(f"{done.stderr}\npip found no compatible versions: see its output above")
        found = [entry["metadata"] for entry in json.loads(report.read_text())["install"]]
    return {package["name"]: package["version"] for package in found}


def lock_text(versions: dict[str, str], python: str) -> str:
    """The lock file's text: one pin per line, without machine-specific parts."""
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
            f"shardlab: the lock must be made on Python {python} and this is {here}: "
            f"run `make lock PYTHON=python{python}`"
        )
    print("resolving the newest compatible versions with pip (about a minute)", flush=True)
    LOCK.write_text(lock_text(resolve(direct_requirements(pyproject)), python))
    print(f"wrote {LOCK.name}: read the diff, then run `make test`")


if __name__ == "__main__":
    main()
