"""Known traps of a machine, each with what to do."""

from __future__ import annotations

from collections.abc import Iterator

from shardlab.machine_report.nvidia import Gpus

MIB = 1 << 20
ENOUGH_SHARED_MEMORY = 512 * MIB  # docker's default is 64 MiB
# Consumer cards from the RTX 40 series on have neither NVLink nor, with NVIDIA's driver, P2P.
WITHOUT_P2P = ("RTX 4090", "RTX 4080", "RTX 4070", "RTX 4060")


def traps(
    gpus: Gpus | None, *, torch_gpus: int, nccl: str | None, shared_memory_bytes: int | None
) -> Iterator[str]:
    """``torch_gpus``: how many torch can use. ``nccl``: torch's version of it, None without."""
    if gpus is not None and gpus.gpus:
        if torch_gpus < len(gpus.gpus):
            yield (
                f"nvidia-smi sees {len(gpus.gpus)} GPUs and torch {torch_gpus}: "
                "CUDA_VISIBLE_DEVICES hides some, the driver is too old for torch's CUDA, "
                "or this is torch's CPU build (python -c 'import torch; print(torch.version.cuda)')"
            )
        if nccl is None:
            yield "GPUs and no NCCL in this torch: ranks use gloo on the CPU"
        yield from _p2p(gpus)
    if shared_memory_bytes is not None and shared_memory_bytes < ENOUGH_SHARED_MEMORY:
        yield (
            f"/dev/shm has only {shared_memory_bytes // MIB} MiB: NCCL's and the data loaders' "
            "shared memory may not fit (docker run --shm-size=1g, or --ipc=host)"
        )


def _p2p(gpus: Gpus) -> Iterator[str]:
    advice = (
        "if the first collective hangs, set NCCL_P2P_DISABLE=1 "
        "(nccl-tests issue 117, Lightning issue 19425)"
    )
    missing = gpus.without_p2p()
    if missing:
        (first, why), *more = missing.items()
        pairs = f"GPUs {first[0]} and {first[1]}" + (f" and {len(more)} more pairs" if more else "")
        yield f"{pairs} without P2P ({why}): messages pass through the host's memory; {advice}"
    elif len(gpus.gpus) > 1 and (card := _card_without_p2p(gpus)):
        yield f"{card} has no P2P with NVIDIA's driver, whatever it reports: {advice}"


def _card_without_p2p(gpus: Gpus) -> str | None:
    return next(
        (gpu.name for gpu in gpus.gpus if any(card in gpu.name for card in WITHOUT_P2P)), None
    )
