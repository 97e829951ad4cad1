"""What this machine can do, on one screen.

Unproven: the lines about several GPUs (see nvidia.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import psutil
import torch

from shardlab.machine_report import limits
from shardlab.machine_report.nvidia import PATHS, Gpus, read_gpus
from shardlab.machine_report.traps import traps
from shardlab.notebook_code import cells
from shardlab.ranks.machine import max_ranks
from shardlab.widgets.units import format_bytes

Line = tuple[str, str]


def lines() -> list[Line]:
    """Names and what this machine has, as text."""
    gpus = read_gpus()
    torch_gpus, nccl = torch.cuda.device_count(), nccl_version()
    shared = limits.shared_memory_bytes()
    usable = torch_gpus if nccl else 0
    found = [*_system(shared), *_torch(nccl), *gpu_lines(gpus), *_chapters(usable)]
    known = list(traps(gpus, torch_gpus=torch_gpus, nccl=nccl, shared_memory_bytes=shared))
    return found + ([("known trap", text) for text in known] or [("known traps", "none found")])


def _system(shared_bytes: int | None) -> Iterator[Line]:
    cpus, most = limits.container_cpus(), limits.container_memory_bytes()
    yield "cores", str(limits.cores()) + (f", of which the container gets {cpus:g}" if cpus else "")
    memory = psutil.virtual_memory()
    free = f"{format_bytes(memory.available)} free of {format_bytes(memory.total)}"
    yield "memory", free + (f"; the container's limit is {format_bytes(most)}" if most else "")
    yield "/dev/shm", "none" if shared_bytes is None else format_bytes(shared_bytes)
    yield "user namespaces", limits.user_namespaces() or "allowed"


def nccl_version() -> str | None:
    """None where this torch has no NCCL."""
    if not torch.distributed.is_nccl_available():
        return None
    return ".".join(map(str, torch.cuda.nccl.version()))


def _torch(nccl: str | None) -> Iterator[Line]:
    yield "torch", f"{torch.__version__}, {f'NCCL {nccl}' if nccl else 'without NCCL'}"


def gpu_lines(gpus: Gpus | None) -> Iterator[Line]:
    """The GPUs, and the path and the P2P state of each pair; equal ones share a line."""
    if gpus is None or not gpus.gpus:
        yield "GPUs", "none" if gpus is not None else "none (no working nvidia-smi)"
        return
    for gpu in gpus.gpus:
        memory = f", {gpu.memory_mib:,} MiB" if gpu.memory_mib else ""
        yield f"GPU {gpu.index}", f"{gpu.name}{memory}"
    kinds: dict[tuple[str, str], list[str]] = {}
    for pair in sorted(gpus.paths.keys() | gpus.p2p.keys()):
        kind = gpus.paths.get(pair, ""), gpus.p2p.get(pair, "")
        kinds.setdefault(kind, []).append(f"{pair[0]}–{pair[1]}")
    for (path, p2p), pairs in kinds.items():
        shown = f"{', '.join(pairs[:6])}{', …' if len(pairs) > 6 else ''}"
        yield "GPU pairs", f"{_link(path)}{_p2p(p2p)}: {shown}"


def _link(path: str) -> str:
    if path.startswith("NV"):
        return f"{path[2:]} NVLinks" if path != "NV1" else "1 NVLink"
    return f"{path} ({PATHS[path]})" if path in PATHS else path or "path unknown"


def _p2p(state: str) -> str:
    return {"": "", "OK": ", P2P"}.get(state, f", no P2P ({state})")


def _chapters(gpus: int) -> Iterator[Line]:
    """Nearly all calls of the chapters ask for the CPU, where bytes can be counted."""
    yield "ranks at most", f"{max_ranks()} in one launch, on the CPU"
    names = cells.chapters()
    free = [name for name in names if gpus and _has_launch_for_gpus(name)]
    yield (
        "chapters",
        f"all {len(names)} run here on the CPU with gloo"
        + (f"; on GPUs as well: {', '.join(free)}" if free else ""),
    )
    if gpus:
        yield "your own launches", f'use GPUs up to world_size={gpus}, unless device="cpu"'


def _has_launch_for_gpus(chapter: str) -> bool:
    statements = cells.statements(cells.CHAPTERS / f"{chapter}.ipynb")
    return any(
        not {"device", None} & {keyword.arg for keyword in call.keywords}
        for each in statements
        if isinstance(each.node, ast.stmt)
        for call in cells.launches(each.node)
    )
