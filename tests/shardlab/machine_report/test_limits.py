"""Limits of a container, from the files of its control group."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardlab.machine_report import limits


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return folder


def test_limits_of_version_2(tmp_path: Path) -> None:
    write(tmp_path, cpu_dot_max="150000 100000", memory_dot_max=str(2 << 30))
    assert limits.container_cpus(tmp_path) == 1.5
    assert limits.container_memory_bytes(tmp_path) == 2 << 30


def test_limits_of_version_1(tmp_path: Path) -> None:
    write(tmp_path, cpu__cpu_dot_cfs_quota_us="50000", cpu__cpu_dot_cfs_period_us="100000")
    write(tmp_path, memory__memory_dot_limit_in_bytes=str(1 << 30))
    assert limits.container_cpus(tmp_path) == 0.5
    assert limits.container_memory_bytes(tmp_path) == 1 << 30


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"cpu_dot_max": "max 100000", "memory_dot_max": "max"},
        {
            "cpu__cpu_dot_cfs_quota_us": "-1",
            "cpu__cpu_dot_cfs_period_us": "100000",
            "memory__memory_dot_limit_in_bytes": "9223372036854771712",
        },
    ],
)
def test_no_limit(tmp_path: Path, files: dict[str, str]) -> None:
    write(tmp_path, **files)
    assert limits.container_cpus(tmp_path) is None
    assert limits.container_memory_bytes(tmp_path) is None


def test_user_namespaces_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "unshare"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "not installed" in limits.user_namespaces()
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    assert limits.user_namespaces() == ""
    program.write_text("#!/bin/sh\necho 'unshare: unshare failed: No' >&2\nexit 1\n")
    assert limits.user_namespaces().startswith("not allowed (unshare failed: No)")
