"""The number of threads that torch uses outside of a rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread, as on a rank: results are the same on every machine, to the last digit.

    It is also faster: the course's matrices are small, and on a busy machine several threads
    take up to ten times as long.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
