"""What one submission may use. The one place for these numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

MB, GB = 1_000_000, 1_000_000_000


@dataclass(frozen=True)
class Limits:
    """Times are those that the machine gave: waiting for a busy processor does not count.

    A *container* holds one run of ranks (one case of a check) or the notebook's cells.
    """

    cell_s: float = 10.0  # the slowest of any lab's own takes 3 on a machine that is busy
    submission_s: float = 300.0  # all cells of a notebook
    interrupt_grace_s: float = 5.0  # from the interrupt of a cell until its process is killed
    run_s: float = 600.0  # one case of an answer, or what its exercise says, whichever is less
    deaths: int = 5  # kernels that may die; each costs a new one and a rerun
    output_bytes: int = 1 * MB  # of one cell, or of what one rank prints
    memory_bytes: int = 4 * GB  # of a container, its scratch included
    processes: int = 512  # and threads, of a container
    scratch_bytes: int = 256 * MB  # of files in a container, and again of /dev/shm
    file_bytes: int = 256 * MB  # of one file
    open_files: int = 4096  # of one process
    cpu_s: int = 900  # of one process

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
                raise ValueError(f"limit {field.name} must be a number, not {value!r}")


def limits_of(lab: str, changes: Mapping[str, Any] | None = None) -> Limits:
    """Those of a lab, with an instructor's ``changes``: {"cell_s": 120}; raises ValueError.

    A lab's departures are its folder's LIMITS (autograder/exercises/).
    """
    from autograder import exercises  # which no container has

    merged = {**exercises.setting(lab, "LIMITS", {}), **(changes or {})}
    names = {field.name for field in fields(Limits)}
    unknown = sorted(set(merged) - names)
    if unknown:
        raise ValueError(
            f"no limit is called {', '.join(unknown)}: there are {', '.join(sorted(names))}"
        )
    return replace(Limits(), **merged)
