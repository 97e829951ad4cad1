"""Files that must stay consistent: the three package lists, the Makefile, and the README."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.running_lab import ROOT
from tools import browser, lock

PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")


def pins() -> dict[str, str]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def targets() -> set[str]:
    return set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


# ---- packages


def test_the_lock_pins_what_pyproject_requires() -> None:
    pinned = pins()
    for line in lock.direct_requirements(ROOT / "pyproject.toml"):
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        assert name in pinned, f"{line}: run `make lock`"
        assert requirement.specifier.contains(pinned[name]), (
            f"{line}, locked {pinned[name]}: `make lock`"
        )


def test_the_lock_works_on_every_machine() -> None:
    assert pins()["torch"] == "2.13.0"
    assert not [name for name in pins() if lock.CUDA_PACKAGES.fullmatch(name)]
    assert not [pinned for pinned in pins().values() if "+" in pinned]


def test_the_oldest_python_can_install_the_lock() -> None:
    """Including its early patch releases, which Linux distributions ship: Debian 12 has 3.11.2."""
    oldest = f"{lock.oldest_python(ROOT / 'pyproject.toml')}.0"
    required = {name: metadata(name).get("Requires-Python", "") for name in pins()}
    assert {k: v for k, v in required.items() if not SpecifierSet(v).contains(oldest)} == {}


def test_the_lock_describes_how_it_is_made() -> None:
    assert "Made by `make lock`" in (ROOT / "requirements.lock").read_text().splitlines()[0]


def test_machine_specific_parts_are_left_out_of_the_lock() -> None:
    resolved = {
        "torch": "2.13.0+cu130",
        "nvidia-nccl-cu13": "2.28",
        "cuda-bindings": "13.0",
        "triton": "3.5",
        "Jinja2": "3.1.6",
        "typing_extensions": "4.16.0",
    }
    text = lock.lock_text(resolved, "3.11")
    assert text.splitlines()[3:] == ["jinja2==3.1.6", "torch==2.13.0", "typing-extensions==4.16.0"]


def test_this_environment_matches_the_lock() -> None:
    for name, pinned in pins().items():
        try:
            assert version(name).partition("+")[0] == pinned, name
        except PackageNotFoundError:
            pytest.fail(f"{name} is in the lock and not installed")


def test_conda_gets_the_same_packages_on_the_same_python() -> None:
    parts = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    by_pip = next(part["pip"] for part in parts if isinstance(part, dict))
    assert by_pip == ["-r requirements.lock", "-e ."]
    assert f"python={lock.oldest_python(ROOT / 'pyproject.toml')}" in parts
    assert {"pip", "make", "cxx-compiler"} < {part for part in parts if isinstance(part, str)}


# ---- pages


def test_make_without_a_target_lists_every_target() -> None:
    listed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"^  make (\w+)", listed, re.MULTILINE)) == targets()


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_in_the_docs_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    code = re.findall(r"`([^`\n]+)`", text) + re.findall(r"^```\n(.*?)^```", text, re.M | re.S)
    named = {name for part in code for name in re.findall(r"\bmake ([a-z]+)", part)}
    assert named <= targets()


def test_every_command_of_the_autograder_is_documented() -> None:
    pages = ("README.md", "CONTRIBUTING.md", "docs/instructors.md")
    text = "".join((ROOT / page).read_text() for page in pages)
    command = [sys.executable, "-m", "autograder", "--help"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    commands = set(re.findall(r"^    ([a-z-]+)", listed, re.MULTILINE))
    assert {"build", "mutants"} < commands
    assert commands - set(re.findall(r"python -m autograder ([a-z-]+)", text)) == set()


@pytest.mark.parametrize("page", PAGES)
def test_links_are_not_broken(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text())
    broken = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert broken == []


# ---- CI


@pytest.mark.parametrize(("needed", "outcome"), [("", "1 skipped"), ("1", "1 error")])
def test_without_a_browser_tests_are_skipped_locally_and_fail_in_ci(
    tmp_path: Path, needed: str, outcome: str
) -> None:
    test = tmp_path / "test_page.py"
    test.write_text("def test_page(browser):\n    pass\n")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", os.devnull, str(test)],
        cwd=ROOT,
        env=os.environ
        | {"SHARDLAB_CHROMIUM": str(tmp_path / "none"), "SHARDLAB_NEEDS_BROWSER": needed},
        capture_output=True,
        text=True,
    )
    assert outcome in ran.stdout
    assert ran.stdout.count(browser.NONE) <= 1 + bool(needed)


def test_ci_requires_the_browser() -> None:
    script = (ROOT / ".ci/run").read_text()
    assert "SHARDLAB_NEEDS_BROWSER=1" in script
    assert "make test" in script
