"""What a container or the system allows: memory, processors, shared memory, namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
_NO_LIMIT = 1 << 60  # version 1 reports a number near 2**63 where there is no limit
# Each forbids user namespaces if it has the first value; its administrator can set the second.
_SETTINGS = {
    "kernel.unprivileged_userns_clone": ("0", "1"),
    "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),
    "user.max_user_namespaces": ("0", "10000"),
}


def container_cpus(cgroup: Path = CGROUP) -> float | None:
    """Processors that a control group (version 2 or 1) allows; None without a limit."""
    if (limit := _words(cgroup / "cpu.max")) is None:
        quota = _words(cgroup / "cpu/cpu.cfs_quota_us")
        period = _words(cgroup / "cpu/cpu.cfs_period_us")
        limit = [*quota, *period] if quota and period else None
    if not limit or limit[0] in ("max", "-1"):
        return None
    return int(limit[0]) / int(limit[1])


def container_memory_bytes(cgroup: Path = CGROUP) -> int | None:
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        limit = _words(cgroup / name)
        if limit and limit[0] != "max" and int(limit[0]) < _NO_LIMIT:
            return int(limit[0])
    return None


def _words(path: Path) -> list[str] | None:
    try:
        return path.read_text().split()
    except OSError:
        return None


def shared_memory_bytes() -> int | None:
    """Size of /dev/shm, where NCCL and the ranks of `launch` share memory."""
    try:
        return shutil.disk_usage("/dev/shm").total
    except OSError:
        return None


def user_namespaces() -> str:
    """ "" if this user may create user and network namespaces, else why not, as a sentence."""
    command = ["unshare", "--user", "--map-root-user", "--net", "true"]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        return "unknown: the command unshare is not installed (package util-linux)"
    if ran.returncode == 0:
        return ""
    return f"not allowed ({ran.stderr.strip().removeprefix('unshare: ')}){_remedy()}"


def _remedy() -> str:
    for name, (forbids, allows) in _SETTINGS.items():
        if _words(Path("/proc/sys", name.replace(".", "/"))) == [forbids]:
            return f"; an administrator can allow them: sysctl {name}={allows}"
    return ""


def cores() -> int:
    return len(os.sched_getaffinity(0))
