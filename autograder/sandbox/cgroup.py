"""Outside: limits on a container as a whole, by control groups, if we may create them here.

Control groups count the memory and processes of a container in total, which per-process limits
cannot.  Version 2 is tried first, then version 1; if neither is writable, only the per-process
limits apply (container.py).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from functools import cache
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
FILES = {  # by version: (controller, file); in version 2 one folder serves all controllers
    "memory": {1: ("memory", "memory.limit_in_bytes"), 2: ("", "memory.max")},
    "swap": {1: ("memory", "memory.memsw.limit_in_bytes"), 2: ("", "memory.swap.max")},
    "processes": {1: ("pids", "pids.max"), 2: ("", "pids.max")},
    "peak": {1: ("memory", "memory.max_usage_in_bytes"), 2: ("", "memory.peak")},
    "kills": {1: ("memory", "memory.oom_control"), 2: ("", "memory.events")},
    "processor": {1: ("cpuacct", "cpuacct.usage"), 2: ("", "cpu.stat")},
}
_count = itertools.count()


class ControlGroup:
    """The group of one container. ``folders`` is empty if we cannot create any."""

    def __init__(self, memory_bytes: int, processes: int) -> None:
        name = f"shardlab-{os.getpid()}-{next(_count)}"
        self.version, parents = _places()
        self.folders = {controller: parent / name for controller, parent in parents.items()}
        for folder in self.folders.values():
            folder.mkdir()
        swap_bytes = 0 if self.version == 2 else memory_bytes  # version 1 counts both together
        limits = {"memory": memory_bytes, "swap": swap_bytes, "processes": processes}
        for what, limit in limits.items():
            with contextlib.suppress(KeyError, OSError):  # swap accounting is often off
                self._file(what).write_text(str(limit))

    def _file(self, what: str) -> Path:
        """Raises KeyError if it is not counted."""
        controller, name = FILES[what][self.version]
        return self.folders[controller] / name

    def _number(self, what: str, pattern: str = r"(\d+)") -> int | None:
        try:
            found = re.search(pattern, self._file(what).read_text())
        except (KeyError, OSError):
            return None
        return int(found[1]) if found else None

    def add(self, pid: int) -> None:
        """Add a process and all that it forks from now on."""
        for folder in self.folders.values():
            (folder / "cgroup.procs").write_text(str(pid))

    @property
    def peak_bytes(self) -> int:
        """Peak memory of all processes in total; 0 if it is not counted."""
        return self._number("peak") or 0

    @property
    def out_of_memory(self) -> bool:
        return bool(self._number("kills", r"\boom_kill (\d+)"))

    @property
    def cpu_s(self) -> float | None:
        """CPU time of all its processes, ended ones included; None if it is not counted."""
        if self.version == 1:
            used_ns = self._number("processor")
            return None if used_ns is None else used_ns / 1e9
        used_us = self._number("processor", r"\busage_usec (\d+)")
        return None if used_us is None else used_us / 1e6

    def remove(self) -> list[int]:
        """Returns the processes still in it: none after the container has ended."""
        left: list[int] = []
        for folder in self.folders.values():
            for _ in range(50):
                try:
                    folder.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:  # the last process is still exiting
                    time.sleep(0.01)
            else:
                left += [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
        return left


@cache
def _places() -> tuple[int, dict[str, Path]]:
    """See _find_places; also removes the groups of killed graders, once per process."""
    version, places = _find_places()
    for place in places.values():
        clear(place)
    return version, places


def clear(place: Path) -> None:
    """Removes groups whose creator is dead; rmdir fails for those that still have processes."""
    for folder in place.glob("shardlab-*-*"):
        creator = folder.name.split("-")[1]
        if creator.isdecimal() and not Path("/proc", creator).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()


def _find_places() -> tuple[int, dict[str, Path]]:
    """(version, {controller: a folder in which we can create groups})."""
    own, version = _own_groups(), 2 if (ROOT / "cgroup.controllers").exists() else 1
    places = {}
    for controller in ("",) if version == 2 else ("memory", "pids", "cpuacct"):
        root = ROOT / controller
        for place in (root / own.get(controller, "").lstrip("/"), root):
            if (version == 1 or _is_delegated(place)) and _can_create_in(place):
                places[controller] = place
                break
    return version, places


def _own_groups() -> dict[str, str]:
    """By controller; "" is version 2's."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            found |= dict.fromkeys(controllers.split(","), path)
    return found


def _is_delegated(place: Path) -> bool:
    try:
        delegated = (place / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False
    return {"memory", "pids"} <= set(delegated)


def _can_create_in(place: Path) -> bool:
    trial = place / f"shardlab-{os.getpid()}-trial"
    try:
        trial.mkdir()
        trial.rmdir()
    except OSError:
        return False
    return True
