"""Which device ranks run on, and how many ranks fit on this machine."""

from __future__ import annotations

import glob
from pathlib import Path


def choose_device(device: str, world_size: int) -> tuple[str, str]:
    """("cpu" or "cuda", why); raises ValueError if the requested device is not available."""
    if device == "cpu":
        return "cpu", "requested"
    if device not in ("auto", "cuda"):
        raise ValueError(f'device is "auto", "cpu" or "cuda", not {device!r}')
    gpus = _gpu_count()
    if gpus >= world_size:
        return "cuda", "requested" if device == "cuda" else f"{gpus} GPUs for {world_size} ranks"
    if device == "cuda":
        raise ValueError(
            f"{world_size} ranks need {world_size} GPUs, one per rank; this machine has {gpus}: "
            'lower world_size or pass device="cpu"'
        )
    return "cpu", f"{gpus} GPUs for {world_size} ranks" if gpus else "no GPU on this machine"


def _gpu_count() -> int:
    if not glob.glob("/dev/nvidia[0-9]*"):  # without a GPU, do not import torch
        return 0
    import torch

    return torch.cuda.device_count() if torch.distributed.is_nccl_available() else 0


def max_ranks() -> int:
    """The most ranks that fit in memory (12 MiB each) and in the open-file limit (7 each)."""
    import resource

    import psutil

    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    available_bytes = min(psutil.virtual_memory().available, _container_bytes())
    return int(max(1, min(256, available_bytes // (12 << 20), (open_files - 64) // 7)))


def _container_bytes() -> float:
    """Memory left under a container's limit (cgroup v2); infinite without one."""
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        stat = Path("/sys/fs/cgroup/memory.stat").read_text().split()
        used = int(stat[stat.index("anon") + 1])  # without the page cache, which can be evicted
        return float("inf") if limit == "max" else int(limit) - used
    except (OSError, ValueError):
        return float("inf")
