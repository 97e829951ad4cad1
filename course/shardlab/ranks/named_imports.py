"""What a rank server imports before it forks the ranks of a program, by the names in its pickle.

The pickle is searched as bytes: it holds each name of the code, each key and each module once and
whole, so none is missed. A name found in data only makes the server import something early. To read
the pickle's strings instead (pickletools) takes 90 times as long for a list of 500,000 numbers.
"""

from __future__ import annotations

_TRAINING = (b"DistributedDataParallel", b"fully_shard", b"torch.distributed.", b"optim")
# {what the server has postponed (Server.idle_work): names in a program that will use it}
POSTPONED = {
    "offload": (b"offload", b"CPUAdam"),
    "autograd": (b"backward", b"autograd", *_TRAINING),
    "training": _TRAINING,
}
_LIBRARIES = ("accelerate",)  # each takes a rank over 0.1 s to import


def imports_needed(program: bytes) -> list[str]:
    """Which of the server's postponed imports a pickled program will use."""
    return [work for work, names in POSTPONED.items() if any(name in program for name in names)]


def libraries_named(program: bytes) -> list[str]:
    return [name for name in _LIBRARIES if name.encode() in program]
