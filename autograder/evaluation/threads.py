"""How many threads torch computes with, in the checker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """As on a rank: the same digits on every machine.

    And quicker: oracles' matrices are small, and on a busy machine threads that wait for each other
    take up to ten times as long.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
