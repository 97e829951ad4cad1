"""What a rank did: its calls of torch.distributed, its measured blocks and profiled operators."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """One rank's part in one collective, send or receive.

    Times are seconds since the ranks were released, on a clock that all ranks share.
    ``end_s`` is when its wait returned, or None if the call never completed.
    ``wait_start_s`` is when the rank's main thread stopped for it: at ``start_s``, or at
    ``work.wait()`` of an asynchronous call; None if it did not stop, or stopped in C++ (DDP).
    """

    rank: int
    op: str  # torch.distributed's name: "all_reduce", "send", "recv", "broadcast", ...
    bytes: int  # of the tensors this rank passed in (for a receive, of its buffer)
    peer: int | None  # send, recv: the other rank; None for a collective, or while unknown
    group: tuple[int, ...]  # global ranks of the process group
    start_s: float
    end_s: float | None
    source: str  # "cell 5, line 3" or "path.py, line 10": the innermost line of user code
    seq: int  # counts collectives of the group, or sends/receives between this pair
    dtype: str  # "float32"
    shape: tuple[int, ...]  # of the first tensor
    offset: int  # elements from the start of the tensor's storage; shows which chunk it is
    storage_numel: int  # elements in that storage
    tag: int = 0
    waited: bool = True  # False: isend, irecv or async_op=True, and nobody waited for it
    code: str = ""  # the text of that line, if known
    options: str = ""  # what else all ranks must agree on: "src=0", "op=MAX"
    wait_start_s: float | None = None

    @property
    def is_p2p(self) -> bool:
        return self.op in ("send", "recv")


@dataclass(frozen=True)
class MeasuredBlock:
    """One pass of one rank through a ``with measure(label):`` block."""

    label: str
    rank: int
    start_s: float
    end_s: float
    sent_bytes: tuple[int, ...]  # [N], to each rank


@dataclass(frozen=True)
class Span:
    """An operator or a communication that torch.profiler saw on a rank (`with profile():`).

    Times are on the clock of the calls.
    """

    rank: int
    name: str  # "aten::mm", "gloo:all_reduce"
    kind: str  # "compute" or "communication"
    start_s: float
    end_s: float
