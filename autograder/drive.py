"""What runs on a rank, beside the student's code. Nothing here decides anything."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import cloudpickle
import torch.distributed as dist

from autograder.exercise import Case, Plain

# torch.distributed's functions by which ranks communicate.
COMMUNICATES = {
    name
    for name in dir(dist)
    if callable(getattr(dist, name, None))
    and re.match(
        r"(all_|reduce|broadcast|gather|scatter|barrier|monitored_barrier|i?send|i?recv|P2POp|batch_)",
        name,
    )
    and not re.search(r"Op$|Options$", name.removesuffix("P2POp"))
} | {"P2POp"}


def on_rank(given: Plain, drive_blob: bytes, case: Case, subject_blob: bytes) -> Plain:
    """Unpickles the student's answer here, in a rank's process, and puts it through one case.

    ``drive_blob``: a cloudpickle of the exercise's ``drive``.
    """
    drive: Callable[[Any, Plain, Case], Plain] = cloudpickle.loads(drive_blob)
    return drive(cloudpickle.loads(subject_blob), given, case)


def standing_in(subject: Any, **pieces: Callable[..., Any]) -> Any:
    """``subject`` with the functions it calls by these names replaced by ours.

    An answer built on earlier answers is examined for itself: a slip in an earlier one costs its
    points once.  ``subject`` came out of a pickle, so the globals changed here are its own copy.
    """
    namespace = getattr(inspect.unwrap(subject), "__globals__", None)
    if namespace is not None:
        namespace.update(pieces)
    return subject
