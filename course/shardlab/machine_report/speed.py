"""This machine's roofline, measured: large matrix products, and memory that no cache can hold.

The best of many short repetitions: other processes only make them slower, and a short one is less
likely to be interrupted.  Even so, runs differ by about a tenth.

A roof is the most that memory allows, so what is timed next to it must come from memory too: a
product with the same weight again and again can be above it, because a cache holds the weight.

Unproven: "cuda", for want of a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import cycle

import torch

from shardlab.estimate.roofline import Roofline
from shardlab.estimate.work import product
from shardlab.ranks.threads import one_thread

# By device. The sides of the square matrices; bytes of a buffer, and of a part of it.
SIDES = {"cpu": (512, 1024), "cuda": (4096, 8192)}
BUFFER_BYTES = {"cpu": 256 << 20, "cuda": 2 << 30}
PART_BYTES = {"cpu": 4 << 20, "cuda": 512 << 20}
DTYPES = {"cpu": torch.float32, "cuda": torch.bfloat16}


def measured_roofline(device: str = "cpu", dtype: torch.dtype | None = None) -> Roofline:
    """The peak of matrix products in ``dtype`` and the bandwidth of memory, in about 2 seconds.

        launch(measured_roofline, world_size=1).outputs[0]  # on a rank

    device: "cpu", with one thread as ranks have, or "cuda", the current GPU.
    dtype: if not given, fp32 on the CPU and bf16 on GPUs. A CPU without instructions for bf16 is
        slower with it.

    Memory is read, and copied; the faster of the two counts.  A copy's bytes are those read and
    those written, as in the STREAM benchmark, but many processors also read what is overwritten.
    """
    dtype = DTYPES[device] if dtype is None else dtype
    with one_thread():
        peak = max(_product_flops_per_s(side, device, dtype) for side in SIDES[device])
        return Roofline(peak, _memory_bytes_per_s(device))


def best_s(act: Callable[[], object], device: str = "cpu", *, total_s: float = 0.4) -> float:
    """The seconds of the fastest repetition: at least five after a warm-up, for ``total_s``."""
    _run_s(act, device)
    found = [_run_s(act, device) for _ in range(5)]
    while sum(found) < total_s:
        found.append(_run_s(act, device))
    return min(found)


def _product_flops_per_s(side: int, device: str, dtype: torch.dtype) -> float:
    a, b, c = (torch.rand(side, side, device=device).to(dtype) for _ in range(3))
    return product(side, side, side).flops / best_s(lambda: torch.mm(a, b, out=c), device)


def _memory_bytes_per_s(device: str) -> float:
    """Part by part, so that each has left the caches when its turn comes again."""
    # Written once, or their pages would be allocated while they are timed.
    elements = BUFFER_BYTES[device] // 4
    one, other = (torch.ones(elements, device=device) for _ in range(2))
    pairs = zip(*(buffer.split(PART_BYTES[device] // 4) for buffer in (one, other)), strict=True)
    parts = cycle(pairs)

    def read() -> None:
        torch.dot(*next(parts))

    def copy() -> None:
        source, target = next(parts)
        target.copy_(source)

    return 2 * PART_BYTES[device] / min(best_s(read, device), best_s(copy, device))


def _run_s(act: Callable[[], object], device: str) -> float:
    """On a GPU, a call returns before its work is done, so both ends wait for the GPU."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    start_s = time.perf_counter()
    act()
    wait()
    return time.perf_counter() - start_s
