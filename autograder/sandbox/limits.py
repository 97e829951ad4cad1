"""Resource limits for one submission, all defined here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

MB, GB = 1_000_000, 1_000_000_000


@dataclass(frozen=True)
class Limits:
    """Times do not include waiting for a busy CPU.

    A *container* runs one run of ranks (one case of a check) or the notebook's cells.
    """

    cell_s: float = 10.0  # the slowest cell of all labs takes 3 s on a busy machine
    submission_s: float = 300.0  # all cells of a notebook
    interrupt_grace_s: float = 5.0  # from the interrupt of a cell until its process is killed
    run_s: float = 600.0  # one case of an answer; the exercise may set less
    deaths: int = 5  # times the kernel may die; after each, a new one reruns the cells
    output_bytes: int = 1 * MB  # of one cell, or of what one rank prints
    memory_bytes: int = 4 * GB  # of a container, including its scratch files
    processes: int = 512  # and threads, of a container
    scratch_bytes: int = 256 * MB  # of /tmp in a container, and separately of /dev/shm
    file_bytes: int = 256 * MB  # of one file
    open_files: int = 1024  # of one process; each can hold memory of the operating system
    cpu_s: int = 900  # of one process

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
                raise ValueError(f"limit {field.name} must be a number, not {value!r}")


def limits_of(lab: str, changes: Mapping[str, Any] | None = None) -> Limits:
    """A lab's limits, with an instructor's ``changes``: {"cell_s": 120}; raises ValueError.

    A lab changes the defaults by LIMITS in its folder (autograder/exercises/).
    """
    from autograder import exercises  # not available in containers

    merged = {**exercises.setting(lab, "LIMITS", {}), **(changes or {})}
    names = {field.name for field in fields(Limits)}
    unknown = sorted(set(merged) - names)
    if unknown:
        raise ValueError(
            f"unknown limit {', '.join(unknown)}: the limits are {', '.join(sorted(names))}"
        )
    return replace(Limits(), **merged)
