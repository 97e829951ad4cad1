"""Limits on the checker's own work, which student code can make large: odd outputs, many calls."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import resource
import select
import signal
import time
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any

import torch

from autograder.exercise import Attempt
from autograder.exercise.compare import size_of
from autograder.guest.case import Plain

CPU_S, MEMORY_BYTES = 10, 2_000_000_000  # for judging one case, where that is limited
WALL_S = 20.0 * CPU_S  # of the same on a busy machine
MANY_CALLS = 20_000  # correct answers make a few hundred
USUAL_TIMES, USUAL_BYTES = 8, 1_000_000  # of an output, compared with the expected one
LONG_ELEMENTS = 1 << 13


def is_unusual(attempt: Attempt) -> bool:
    """Whether rules and signs could take long: they compare and multiply tensors of any shape."""
    if attempt.run is not None and len(attempt.run.calls) > MANY_CALLS:
        return True
    wanted = max(map(size_of, attempt.expected))
    pairs = zip(attempt.outputs, attempt.expected, strict=True)
    return any(
        size_of(output) > USUAL_TIMES * wanted + USUAL_BYTES or _grows(output, expected)
        for output, expected in pairs
    )


def _grows(value: Plain, expected: Plain) -> bool:
    """Whether it has a long tensor with a dimension of length 1, which no correct output has: an
    operation with a tensor of the other orientation would make one of billions of elements."""
    if isinstance(value, dict):
        known = expected if isinstance(expected, dict) else {}
        return any(_grows(item, known.get(key)) for key, item in value.items())
    if isinstance(value, list | tuple):
        items = expected if isinstance(expected, list | tuple) else ()
        return any(_grows(*pair) for pair in zip_longest(value, items[: len(value)]))
    shape = tuple(getattr(value, "shape", ()))
    if 1 not in shape or shape == tuple(getattr(expected, "shape", ())):
        return False
    return torch.Size(shape).numel() > LONG_ELEMENTS


def in_limited_process(work: Callable[[], Any]) -> Any:
    """What ``work`` returns in a fork of this process; None if it needs more processor time or
    memory than allowed."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read_end)
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 1))
            data_bytes = 1024 * _status_kb("VmData")
            resource.setrlimit(resource.RLIMIT_DATA, (data_bytes + MEMORY_BYTES,) * 2)
            with os.fdopen(write_end, "wb") as file:
                pickle.dump(work(), file)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(write_end)
    found, until = bytearray(), time.monotonic() + WALL_S
    with os.fdopen(read_end, "rb", buffering=0) as file:
        while select.select([file], [], [], max(0.0, until - time.monotonic()))[0]:
            if not (data := file.read(1 << 20)):
                break
            found += data
        else:
            os.kill(pid, signal.SIGKILL)  # only then: after its last byte it still has to exit
    _, status = os.waitpid(pid, 0)
    # From our own process, which ran no student code.
    return pickle.loads(bytes(found)) if os.waitstatus_to_exitcode(status) == 0 else None


def _status_kb(name: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(f"{name}:"))


@contextlib.contextmanager
def watchdog(seconds: float) -> Iterator[None]:
    """Ends this process if the block takes longer, whatever it hangs in: its worker is replaced,
    and the stacks say where.  Everything that student code can delay has limits of its own."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
