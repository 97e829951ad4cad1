"""Outside: bounds on what a whole container uses, where this machine lets us set them.

Control groups count memory and processes of everything in a container together, which limits of
single processes cannot.  Version 2 is looked for first, then version 1; where neither can be
written there are the limits of each process alone (container.py).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from functools import cache
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
FILES = {  # version 2, version 1: (controller, file)
    "memory": (("", "memory.max"), ("memory", "memory.limit_in_bytes")),
    "swap": (("", "memory.swap.max"), ("memory", "memory.memsw.limit_in_bytes")),
    "processes": (("", "pids.max"), ("pids", "pids.max")),
}
_count = itertools.count()


class ControlGroup:
    """Of one container. ``folders`` is empty where the machine lets us make none."""

    def __init__(self, memory_bytes: int, processes: int) -> None:
        name = f"shardlab-{os.getpid()}-{next(_count)}"
        version, parents = _places()
        self.folders = {controller: parent / name for controller, parent in parents.items()}
        self.is_v2 = version == 2
        for folder in self.folders.values():
            folder.mkdir()
        self._write("memory", memory_bytes)
        self._write("swap", 0 if self.is_v2 else memory_bytes)
        self._write("processes", processes)

    def _write(self, what: str, value: int) -> None:
        controller, file = FILES[what][0 if self.is_v2 else 1]
        if controller in self.folders:
            with contextlib.suppress(OSError):  # swap is often not counted
                (self.folders[controller] / file).write_text(str(value))

    def add(self, pid: int) -> None:
        """With all that it forks from now on."""
        for folder in self.folders.values():
            (folder / "cgroup.procs").write_text(str(pid))

    @property
    def peak_bytes(self) -> int:
        """Of memory, all processes together; 0 where nobody counts."""
        name = "memory.peak" if self.is_v2 else "memory.max_usage_in_bytes"
        return self._number("" if self.is_v2 else "memory", name)

    @property
    def out_of_memory(self) -> bool:
        if self.is_v2:
            return self._event("", "memory.events", "oom_kill")
        return self._event("memory", "memory.oom_control", "oom_kill")

    @property
    def cpu_s(self) -> float | None:
        """Of all its processes, the dead included; None where nobody counts."""
        if not self.is_v2:
            used_ns = self._number("cpuacct", "cpuacct.usage")
            return used_ns / 1e9 if "cpuacct" in self.folders else None
        try:
            lines = (self.folders[""] / "cpu.stat").read_text().splitlines()
        except (KeyError, OSError):
            return None
        return int(dict(line.split() for line in lines)["usage_usec"]) / 1e6

    def _number(self, controller: str, file: str) -> int:
        try:
            return int((self.folders[controller] / file).read_text())
        except (KeyError, OSError, ValueError):
            return 0

    def _event(self, controller: str, file: str, name: str) -> bool:
        try:
            text = (self.folders[controller] / file).read_text()
        except (KeyError, OSError):
            return False
        counts = dict(line.split() for line in text.splitlines())
        return counts.get(name, "0") != "0"

    def remove(self) -> list[int]:
        """Returns the processes that are still in it: none, once the container has ended."""
        left: list[int] = []
        for folder in self.folders.values():
            for _ in range(50):
                try:
                    folder.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:  # the last one is just going
                    time.sleep(0.01)
            else:
                left += [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
        return left


@cache
def _places() -> tuple[int, dict[str, Path]]:
    """As found; with the first group of a process goes what killed graders have left there."""
    version, places = _find_places()
    for place in places.values():
        clear(place)
    return version, places


def clear(place: Path) -> None:
    """Removes groups whose maker is dead. The kernel keeps each that still holds a process."""
    for folder in place.glob("shardlab-*-*"):
        maker = folder.name.split("-")[1]
        if maker.isdecimal() and not Path("/proc", maker).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()


def _find_places() -> tuple[int, dict[str, Path]]:
    """(version, {controller: where groups can be made}); no place where we may not."""
    own = _own_groups()
    if (ROOT / "cgroup.controllers").exists():
        for place in (ROOT / own.get("", "").lstrip("/"), ROOT):
            if _is_delegated(place):
                return 2, {"": place}
        return 2, {}
    places = {}
    for controller in ("memory", "pids", "cpuacct"):
        for place in (ROOT / controller / own.get(controller, "").lstrip("/"), ROOT / controller):
            if place.is_dir() and _can_make(place):
                places[controller] = place
                break
    return 1, places


def _own_groups() -> dict[str, str]:
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return {}
    return {
        name: path
        for _, names, path in (line.split(":", 2) for line in lines)
        for name in names.split(",")
    }


def _is_delegated(place: Path) -> bool:
    try:
        handed_down = (place / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False
    return {"memory", "pids"} <= set(handed_down) and _can_make(place)


def _can_make(place: Path) -> bool:
    trial = place / f"shardlab-{os.getpid()}-trial"
    try:
        trial.mkdir()
        trial.rmdir()
    except OSError:
        return False
    return True
