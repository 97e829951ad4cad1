"""tools.debian, with a fake apt-get."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tools import debian, launchers, sandbox


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the PATH; the user appears to be root."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return tmp_path


def command(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_packages_are_installed_without_prompts(
    machine: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command(machine, "apt-get", f'echo "$DEBIAN_FRONTEND $*" >> {machine}/calls; echo chatter')
    assert debian.install("a thing", "one", "two")
    assert (machine / "calls").read_text().splitlines() == [
        "noninteractive update",
        "noninteractive install --yes --no-install-recommends one two",
    ]
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "installing a thing: apt-get update",
        "installing a thing: apt-get install --yes --no-install-recommends one two",
    ]


def test_a_failure_shows_its_last_lines(machine: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command(machine, "apt-get", "for line in 1 2 3 4 5; do echo line $line; done; exit 100")
    assert not debian.install("a thing", "one")
    err = capfd.readouterr().err
    assert "line 5" in err
    assert "line 1" not in err


def test_a_hanging_installer_times_out(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(debian, "INSTALL_TIMEOUT_S", 0.2)
    command(machine, "apt-get", "exec /bin/sleep 60")
    assert sandbox.get() is None
    assert "timed out" in capfd.readouterr().err


def test_nothing_is_installed_without_apt_or_without_root(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not debian.install("a thing", "one")
    command(machine, "apt-get", f"touch {machine}/calls")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not debian.install("a thing", "one")
    assert not (machine / "calls").exists()


def test_launchers_are_installed_where_one_is_missing(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launchers, "SBIN", str(machine))
    for name in ("pdsh", "sbatch", "slurmctld"):
        command(machine, name, "")
    assert launchers.missing("pdsh") == ""
    assert launchers.main() == 1  # no apt-get
    assert "found no slurmd: their tests are skipped" in capfd.readouterr().err
    copy = f"/bin/cp {machine}/pdsh {machine}/slurmd"
    command(machine, "apt-get", f'echo "$*" >> {machine}/calls; {copy}')
    assert launchers.main() == 0
    assert "pdsh slurm-client slurmctld slurmd" in (machine / "calls").read_text()
    assert str(machine / "slurmd") in capfd.readouterr().out
