"""The memory of another process, as Linux counts it."""

from __future__ import annotations

import resource

_PAGE_BYTES = resource.getpagesize()


def private_bytes(pid: int | None) -> int | None:
    """Bytes in pages that belong to no file and are not shared. None if unknown."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            _, resident, shared, *_ = map(int, file.read().split())
    except (OSError, ValueError):
        return None
    return (resident - shared) * _PAGE_BYTES
