"""What to change in a script for torchrun, or for a GPU, so that `launch` runs it."""

from __future__ import annotations

import re

_HINTS = [
    (
        r"TypeError: .* missing .*'(rank|local_rank|gpu|world_size|args)'",
        "`launch` passes no rank: ask dist.get_rank() and dist.get_world_size() inside the "
        "function. Other arguments follow the function: launch(fn, a, b, world_size=4).",
    ),
    (
        r"initialize the default process group twice",
        "`launch` has already called init_process_group on every rank: delete this line.",
    ),
    (
        r"KeyError: '?MASTER_(ADDR|PORT)'?",
        "torchrun sets these for init_process_group, which `launch` has already called, through "
        "a file and without an address: delete what uses them.",
    ),
    (
        r"_cuda_setDevice|not compiled with CUDA|No CUDA GPUs are available|invalid device ordinal"
        r"|Found no NVIDIA driver|no attribute '_cuda_",
        "These ranks are on the CPU (run.device_reason says why): use "
        'device = torch.device("cpu"), and no set_device, .cuda() or device_ids.',
    ),
    (
        r"BdbQuit|EOFError: EOF when reading a line",
        "A rank has no keyboard, so breakpoint() and input() end it: print what you want to know.",
    ),
    (
        r"No backend type associated with device type cuda|Invalid backend.*nccl|ProcessGroupNCCL",
        "These ranks are on the CPU and communicate with gloo, not with NCCL.",
    ),
]


def hint_for(kind: str, message: str) -> str:
    """A paragraph that says what to change; "" for an error that we know nothing about."""
    text = f"{kind}: {message}"
    for pattern, hint in _HINTS:
        if re.search(pattern, text):
            return f"{hint}\n\n"
    return ""
