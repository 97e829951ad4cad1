"""The part of every exported script that starts and measures a rank.

It is copied into the script as text, so it imports nothing of ours.
"""

from __future__ import annotations

import os
import random
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

RANK = int(os.environ.get("RANK", 0))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", 1))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", 0))
# DeepSpeed's launcher sets LOCAL_SIZE.
LOCAL_WORLD_SIZE = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or 1)
# A GPU for each rank of this node, or the CPU. DEVICE=cpu torchrun … chooses the CPU.
HAS_GPUS = torch.cuda.device_count() >= LOCAL_WORLD_SIZE
DEVICE = os.environ.get("DEVICE", "cuda" if HAS_GPUS else "cpu")
if DEVICE == "cuda":
    torch.cuda.set_device(LOCAL_RANK)
    torch.set_default_device("cuda")


def run_on_this_rank(
    fn: Callable[..., Any],
    *args: Any,
    inputs: Sequence[Any] | None = None,
    seed: int = 0,
    **_: Any,
) -> None:
    """What `launch` does on a rank: fn(*args), or fn(inputs[rank], *args)."""
    if inputs is not None:
        if len(inputs) != WORLD_SIZE:
            raise SystemExit(
                f"there are inputs for {len(inputs)} ranks, and this job has {WORLD_SIZE}"
            )
        args = (inputs[RANK], *args)
    own_seed = seed * 1_000_003 + RANK
    random.seed(own_seed)
    np.random.seed(own_seed % 2**32)
    torch.manual_seed(own_seed)
    dist.barrier()
    before = sent_bytes()
    output = fn(*args)
    sent = sent_bytes() - before
    counted = f"{sent:,} bytes" if DEVICE == "cpu" else "not counted, NCCL's own transport"
    for rank in range(WORLD_SIZE):  # one after another
        if rank == RANK:
            print(f"rank {RANK} returned {output!r}", flush=True)
            print(f"rank {RANK} sent {counted}", flush=True)
        dist.barrier()


def sent_bytes() -> int:
    """Bytes that this process has written to its TCP sockets, those to the store left out.

    Linux counts them for each socket, in struct tcp_info (linux/tcp.h).
    """
    store, total = int(os.environ["MASTER_PORT"]), 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(fd))) as sock:
                ports = sock.getsockname()[1], sock.getpeername()[1]
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 216)
        except (OSError, IndexError):  # no connected TCP socket
            continue
        (notsent,) = struct.unpack_from("<I", info, 144)
        sent, again = struct.unpack_from("<QQ", info, 200)
        total += 0 if store in ports else sent - again + notsent
    return total


def start() -> None:
    """Connect to the other ranks: NCCL for tensors on GPUs, gloo for those on the CPU."""
    for name, value in (("RANK", 0), ("WORLD_SIZE", 1), ("MASTER_ADDR", "127.0.0.1")):
        os.environ.setdefault(name, str(value))  # without torchrun: one rank
    os.environ.setdefault("MASTER_PORT", "0")
    dist.init_process_group("cpu:gloo,cuda:nccl" if DEVICE == "cuda" else "gloo")
    torch.set_num_threads(1)
