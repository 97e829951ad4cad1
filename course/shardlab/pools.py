"""Two pools of memory, "device" and "host", and the bytes that move between them.

On a GPU they are real: the device's memory, and pinned memory of the host.  On a CPU they are two
accounts of one memory, kept by the rules of a GPU:

- an operation runs where its tensors are, and so does what it makes;
- what is made from nothing (`torch.zeros(4)`) is made where the block says;
- tensors of both pools in one operation are an error, PoolError, which names the line;
- a tensor changes pools by `to_host` and `to_device` alone, and they count its bytes.

    pools = Pools()
    with pools:                                         # from nothing: on the device
        gradient = torch.ones(4, dtype=torch.bfloat16)
        on_host = pools.to_host(gradient)               # 8 bytes down
        with pools.host():                              # from nothing: on the host
            master = torch.zeros(4)
        master -= 0.1 * on_host
        weights = pools.to_device(master.bfloat16())    # 8 bytes up

What goes round PyTorch's operations (numpy, say) is not seen, and neither is what ran before
``with pools:``: a tensor from there is the device's.
"""

from __future__ import annotations

import contextlib
import sys
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shardlab.source import is_the_users, quoted
from shardlab.trace import measure

DEVICE, HOST = "device", "host"
# torch.tensor([1, 2]) makes its tensor unseen and then calls this: it is new, wherever it is
_MAKES_KNOWN = {torch.ops.aten.lift_fresh.default, torch.ops.aten.lift.default}


class PoolError(RuntimeError):
    """Tensors of both pools met in one operation, or a tensor moved to where it is."""


@dataclass(frozen=True)
class Move:
    """One copy between the pools. Seconds count from the making of its Pools."""

    to: str  # "host" or "device"
    bytes: int
    dtype: str  # "bfloat16"
    start_s: float
    end_s: float


class Pools:
    """See the module's docstring.

    ``device``: "cuda": real pools; "cpu": accounted ones; "auto": what this process trains on.
    Raises ValueError for another device.
    """

    def __init__(self, device: str = "auto") -> None:
        if device not in ("auto", "cpu", "cuda"):
            raise ValueError(f'device is "auto", "cpu" or "cuda", not {device!r}')
        self.is_real = _trains_on_cuda() if device == "auto" else device == "cuda"
        self._device = "cuda" if self.is_real else "cpu"
        self._moves: list[Move] = []
        self._ledger = _Ledger()
        self._place = ""  # where things are made from nothing; "" outside of both blocks
        self._is_moving = False
        self._begun_s = time.perf_counter()
        self._entered = contextlib.ExitStack()

    # ---- where things are made ------------------------------------------------------------------

    def __enter__(self) -> Pools:
        self._entered.enter_context(self._at(DEVICE))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._entered.close()

    def host(self) -> contextlib.AbstractContextManager[None]:
        """`with pools.host():` what is made from nothing in the block is on the host."""
        return self._at(HOST)

    @contextlib.contextmanager
    def _at(self, place: str) -> Iterator[None]:
        before, self._place = self._place, place
        with contextlib.ExitStack() as stack:
            if not before:  # one watcher sees all operations, however deep the blocks
                stack.enter_context(_Watcher(self))
            if self.is_real:
                stack.enter_context(torch.device(self._device if place == DEVICE else "cpu"))
            try:
                yield
            finally:
                self._place = before

    # ---- moving ---------------------------------------------------------------------------------

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the host, of the same dtype: `tensor.nbytes` bytes down."""
        return self._move(tensor, HOST)

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the device, of the same dtype: `tensor.nbytes` bytes up."""
        return self._move(tensor, DEVICE)

    def _move(self, tensor: torch.Tensor, to: str) -> torch.Tensor:
        if self.place_of(tensor) == to:
            raise PoolError(f"{_named(tensor)} is on the {to} already{_here()}")
        self._ledger.note(tensor, self.place_of(tensor))
        self._is_moving, begun_s = True, time.perf_counter()
        try:
            with torch.no_grad():
                device = self._device if to == DEVICE else "cpu"
                pinned = self.is_real and to == HOST
                copy = torch.empty(
                    tensor.shape, dtype=tensor.dtype, device=device, pin_memory=pinned
                ).copy_(tensor)
        finally:
            self._is_moving, ended_s = False, time.perf_counter()
        self._ledger.note(copy, to)
        seconds = begun_s - self._begun_s, ended_s - self._begun_s
        self._moves.append(Move(to, tensor.nbytes, _dtype_name(tensor), *seconds))
        return copy

    @property
    def moves(self) -> tuple[Move, ...]:
        """Every copy so far, in order."""
        return tuple(self._moves)

    @property
    def to_host_bytes(self) -> int:
        """All that went down so far."""
        return sum(move.bytes for move in self.moves if move.to == HOST)

    @property
    def to_device_bytes(self) -> int:
        """All that went up so far."""
        return sum(move.bytes for move in self.moves if move.to == DEVICE)

    # ---- what is where --------------------------------------------------------------------------

    def place_of(self, tensor: torch.Tensor) -> str:
        """ "device" or "host". On a CPU what nobody has seen being made is the device's."""
        if self.is_real:
            return HOST if tensor.device.type == "cpu" else DEVICE
        return self._ledger.place_of(tensor) or DEVICE

    def live_bytes(self, place: str) -> dict[str, int]:
        """{"float32": bytes now, …} of what was seen in the pool: whole storages, views once."""
        return _without_zeros(self._ledger.live[place])

    def peak_bytes(self, place: str) -> dict[str, int]:
        """{"float32": the most at any time, …}: each dtype at its own highest moment."""
        return _without_zeros(self._ledger.peak[place])

    def _watch(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operation, and enters what it made where its tensors are."""
        if self._is_moving:
            return operation(*args, **kwargs)
        place = self._place
        if operation not in _MAKES_KNOWN:
            given = _tensors((args, kwargs))
            place = self._common_place(operation, given)
            self._enter(given, DEVICE)  # those that nobody has seen being made
            if self.is_real and given:
                return self._stays(operation, args, kwargs, place)
        made = operation(*args, **kwargs)
        self._enter(_tensors(made), place)
        return made

    def _stays(
        self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], place: str
    ) -> Any:
        """`x.cpu()` and the like would move bytes that nobody counts."""
        made = operation(*args, **kwargs)
        for tensor in _tensors(made):
            if tensor.dim() > 0 and self.place_of(tensor) != place:
                away = self.place_of(tensor)
                raise PoolError(
                    f"{operation.overloadpacket.__name__} moves {_named(tensor)} to the {away} "
                    f"uncounted: use pools.to_{away}(…){_here()}"
                )
        self._enter(_tensors(made), place)
        return made

    def _enter(self, tensors: list[torch.Tensor], place: str) -> None:
        for tensor in tensors:
            self._ledger.note(tensor, self.place_of(tensor) if self.is_real else place)

    def _common_place(self, operation: Any, tensors: list[torch.Tensor]) -> str:
        # a single number goes with either pool, as on a GPU
        large = [tensor for tensor in tensors if tensor.dim() > 0]
        places = {self.place_of(tensor): tensor for tensor in large}
        if len(places) > 1:
            raise PoolError(
                f"{operation.overloadpacket.__name__} of {_named(places[DEVICE])} on the device "
                f"and {_named(places[HOST])} on the host: bring one over with pools.to_host(…) or "
                f"pools.to_device(…){_here()}"
            )
        return self.place_of((large or tensors)[0]) if tensors else self._place


class _Watcher(TorchDispatchMode):
    """Shows each operation of PyTorch, those of backward too, to its Pools."""

    def __init__(self, pools: Pools) -> None:
        super().__init__()
        self.pools = pools

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return self.pools._watch(func, args, kwargs or {})


class _Ledger:
    """Which storages are where. A storage keeps its place, and leaves when it is freed."""

    def __init__(self) -> None:
        self.live: dict[str, Counter[str]] = {DEVICE: Counter(), HOST: Counter()}
        self.peak: dict[str, Counter[str]] = {DEVICE: Counter(), HOST: Counter()}
        # by the id of a storage; its weak reference takes the entry out before the id is reused
        self._entries: dict[int, tuple[str, weakref.ref[torch.UntypedStorage]]] = {}

    def place_of(self, tensor: torch.Tensor) -> str | None:
        entry = self._entries.get(id(tensor.untyped_storage()))
        return entry[0] if entry else None

    def note(self, tensor: torch.Tensor, place: str) -> None:
        """Enters a tensor's storage if it is new; a view shares its base's."""
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._entries:
            return
        dtype, size = _dtype_name(tensor), storage.nbytes()
        live, peak = self.live[place], self.peak[place]

        def freed(_: object) -> None:
            del self._entries[key]
            live[dtype] -= size

        self._entries[key] = place, weakref.ref(storage, freed)
        live[dtype] += size
        peak[dtype] = max(peak[dtype], live[dtype])


def _tensors(values: Any) -> list[torch.Tensor]:
    return [
        leaf
        for leaf in tree_leaves(values)
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided
    ]


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _named(tensor: torch.Tensor) -> str:
    return f"a {_dtype_name(tensor)} tensor of shape {tuple(tensor.shape)}"


def _without_zeros(count: Counter[str]) -> dict[str, int]:
    return {dtype: size for dtype, size in sorted(count.items()) if size}


def _here() -> str:
    """The student's line. On a launched rank the RankError names it."""
    if measure.recorder is not None:
        return ""
    frame = sys._getframe(1)
    while frame is not None and not is_the_users(frame.f_code.co_filename):
        if frame.f_back is None:
            return ""
        frame = frame.f_back
    return f"  [{quoted(frame.f_code.co_filename, frame.f_lineno)}]"


def _trains_on_cuda() -> bool:
    if dist.is_available() and dist.is_initialized():
        return "nccl" in dist.get_backend_config()
    return torch.cuda.is_available()
