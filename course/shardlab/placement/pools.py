"""Two pools of memory, "device" and "host", and the bytes that move between them.

On a GPU the pools are real: the device's memory, and pinned host memory.  On a CPU they share one
memory, and each tensor is assigned to a pool by the rules of a GPU:

- an operation runs in its inputs' pool, and its outputs stay there;
- a new tensor (`torch.zeros(4)`) goes to the pool of the enclosing block;
- tensors of both pools in one operation raise PoolError, which names the line;
- only `to_host` and `to_device` move a tensor to the other pool, and they count its bytes.

    pools = Pools()
    with pools:                                         # new tensors: on the device
        gradient = torch.ones(4, dtype=torch.bfloat16)
        on_host = pools.to_host(gradient)               # 8 bytes down
        with pools.host():                              # new tensors: on the host
            master = torch.zeros(4)
        master -= 0.1 * on_host
        weights = pools.to_device(master.bfloat16())    # 8 bytes up

Operations outside PyTorch (numpy, say) are not tracked.  A tensor made before ``with pools:``
belongs to the device.
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

from shardlab.display.source import is_user_code, quoted
from shardlab.trace import measure

DEVICE, HOST = "device", "host"
# torch.tensor([1, 2]) calls this on a tensor that no operator made: the tensor is new
_LIFT_OPS = {torch.ops.aten.lift_fresh.default, torch.ops.aten.lift.default}


class PoolError(RuntimeError):
    """An operation used tensors of both pools, or moved a tensor to the pool it is already in."""


@dataclass(frozen=True)
class Move:
    """One copy between the pools. Times count from the creation of the Pools."""

    to: str  # "host" or "device"
    bytes: int
    dtype: str  # "bfloat16"
    start_s: float
    end_s: float


class Pools:
    """See the module's docstring.

    ``device``: "cuda": real pools; "cpu": simulated; "auto": the device this process trains on.
    Raises ValueError for another device.
    """

    def __init__(self, device: str = "auto") -> None:
        if device not in ("auto", "cpu", "cuda"):
            raise ValueError(f'device is "auto", "cpu" or "cuda", not {device!r}')
        self.is_real = _trains_on_cuda() if device == "auto" else device == "cuda"
        self._device = "cuda" if self.is_real else "cpu"
        self._moves: list[Move] = []
        self._ledger = _Ledger()
        self._place = ""  # pool of new tensors; "" outside of both blocks
        self._is_moving = False
        self._start_s = time.perf_counter()
        self._entered = contextlib.ExitStack()

    # ---- where tensors are made ------------------------------------------------------------------

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
        """`with pools.host():` new tensors in the block go to the host."""
        return self._at(HOST)

    @contextlib.contextmanager
    def _at(self, place: str) -> Iterator[None]:
        before, self._place = self._place, place
        with contextlib.ExitStack() as stack:
            if not before:  # one watcher for nested blocks
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
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"to_{to} moves a tensor, not {type(tensor).__name__}")
        if self.place_of(tensor) == to:
            raise PoolError(f"{_named(tensor)} is already on the {to}{_user_line()}")
        self._ledger.note(tensor, self.place_of(tensor))
        self._is_moving, started_s = True, time.perf_counter()
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
        seconds = started_s - self._start_s, ended_s - self._start_s
        self._moves.append(Move(to, tensor.nbytes, _dtype_name(tensor), *seconds))
        return copy

    @property
    def moves(self) -> tuple[Move, ...]:
        """Every copy so far, in order."""
        return tuple(self._moves)

    @property
    def to_host_bytes(self) -> int:
        """Bytes moved down so far."""
        return sum(move.bytes for move in self.moves if move.to == HOST)

    @property
    def to_device_bytes(self) -> int:
        """Bytes moved up so far."""
        return sum(move.bytes for move in self.moves if move.to == DEVICE)

    # ---- pool contents --------------------------------------------------------------------------

    def place_of(self, tensor: torch.Tensor) -> str:
        """ "device" or "host". On a CPU a tensor of unknown origin belongs to the device."""
        if self.is_real:
            return HOST if tensor.device.type == "cpu" else DEVICE
        return self._ledger.place_of(tensor) or DEVICE

    def live_bytes(self, place: str) -> dict[str, int]:
        """{"float32": bytes now, …} of the pool's tracked tensors: whole storages, views once."""
        return _without_zeros(self._ledger.live[place])

    def peak_bytes(self, place: str) -> dict[str, int]:
        """{"float32": peak bytes, …}: each dtype at its own peak."""
        return _without_zeros(self._ledger.peak[place])

    def _watch(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operation, and assign its outputs to the pool of its inputs."""
        if self._is_moving:
            return operation(*args, **kwargs)
        place = self._place
        if operation not in _LIFT_OPS:
            given = _tensors((args, kwargs))
            place = self._common_place(operation, given)
            self._note_all(given, DEVICE)  # those of unknown origin
            if self.is_real and given:
                return self._run_in_pool(operation, args, kwargs, place)
        made = operation(*args, **kwargs)
        self._note_all(_tensors(made), place)
        return made

    def _run_in_pool(
        self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], place: str
    ) -> Any:
        """Refuse operations such as `x.cpu()`, which would move bytes without counting them."""
        made = operation(*args, **kwargs)
        for tensor in _tensors(made):
            if tensor.dim() > 0 and self.place_of(tensor) != place:
                away = self.place_of(tensor)
                raise PoolError(
                    f"{operation.overloadpacket.__name__} moves {_named(tensor)} to the {away} "
                    f"without counting it: use pools.to_{away}(…){_user_line()}"
                )
        self._note_all(_tensors(made), place)
        return made

    def _note_all(self, tensors: list[torch.Tensor], place: str) -> None:
        for tensor in tensors:
            self._ledger.note(tensor, self.place_of(tensor) if self.is_real else place)

    def _common_place(self, operation: Any, tensors: list[torch.Tensor]) -> str:
        # a scalar combines with either pool, as on a GPU
        large = [tensor for tensor in tensors if tensor.dim() > 0]
        places = {self.place_of(tensor): tensor for tensor in large}
        if len(places) > 1:
            raise PoolError(
                f"{operation.overloadpacket.__name__} of {_named(places[DEVICE])} on the device "
                f"and {_named(places[HOST])} on the host: move one with pools.to_host(…) or "
                f"pools.to_device(…){_user_line()}"
            )
        return self.place_of((large or tensors)[0]) if tensors else self._place


class _Watcher(TorchDispatchMode):
    """Passes each PyTorch operation, including those of backward, to its Pools."""

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
    """The pool of each storage, which never changes, until the storage is freed."""

    def __init__(self) -> None:
        self.live: dict[str, Counter[str]] = {DEVICE: Counter(), HOST: Counter()}
        self.peak: dict[str, Counter[str]] = {DEVICE: Counter(), HOST: Counter()}
        # by id of the storage; a weak reference removes the entry before the id is reused
        self._entries: dict[int, tuple[str, weakref.ref[torch.UntypedStorage]]] = {}

    def place_of(self, tensor: torch.Tensor) -> str | None:
        entry = self._entries.get(id(tensor.untyped_storage()))
        return entry[0] if entry else None

    def note(self, tensor: torch.Tensor, place: str) -> None:
        """Record a tensor's storage if it is new; a view shares its base's."""
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


def _user_line() -> str:
    """The student's line; empty on a launched rank, where the RankError names it."""
    if measure.recorder is not None:
        return ""
    frame = sys._getframe(1)
    while frame is not None and not is_user_code(frame.f_code.co_filename):
        if frame.f_back is None:
            return ""
        frame = frame.f_back
    return f"  [{quoted(frame.f_code.co_filename, frame.f_lineno)}]"


def _trains_on_cuda() -> bool:
    if dist.is_available() and dist.is_initialized():
        return "nccl" in dist.get_backend_config()
    return torch.cuda.is_available()
