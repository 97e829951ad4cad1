"""Tracks the storages of a rank's tensors, and what each is used for.

Mechanism.  A TorchDispatchMode sees every operator of the rank's main thread with its input and
output tensors.  A storage is counted from the operator that created it, or the first that used it,
until a weak reference reports its release; views share a storage, so nothing is counted twice.

What a storage is used for becomes known only later: a gradient is a plain tensor until it becomes
a parameter's ``.grad``.  So each storage collects marks during its lifetime and gets its category
at the end of the run.  Marks come from public APIs that DDP, FSDP2 and DeepSpeed all use:

- the parameters of modules that are called;
- a leaf used by an operator with gradients on is a parameter, even if gathered temporarily;
- a hook on each such leaf sees its gradient before it is accumulated;
- an optimizer's step reveals its states, and those of its parameters that no module owns: the fp32
  master weights of mixed precision;
- c10d operators reveal which tensors are communicated.

DeepSpeed needs two additions: its own backward and step, which do more than torch's, and its
gradient buffers, partitioned and in buckets.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from shardlab.linux import thread
from shardlab.run.live_memory import CATEGORIES
from shardlab.trace.tensors import tensors_in
from shardlab.trace.unit_recorder import record_units

MAX_SAMPLES = 3000  # of the reported timeline
MAX_WAIT_S = 3.0  # for other threads to become idle, in total over a run

# Marks, strongest first: a storage's category follows from its strongest mark.
OWNED, MASTER, STATE, LEAF, GRADIENT, COMMUNICATED, FORWARD, LEFT_OVER, USED = (
    1 << i for i in range(9)
)
CATEGORY_OF_MARK = {
    OWNED: "parameters",
    MASTER: "optimizer",
    STATE: "optimizer",
    LEAF: "parameters",
    GRADIENT: "gradients",
    COMMUNICATED: "buckets",
    FORWARD: "activations",
    LEFT_OVER: "gradients",  # created in the backward pass and still live at its end
}  # USED (by an operator with gradients on) alone has no category: inputs have it too

DEEPSPEED_MASTERS = (
    "single_partition_of_fp32_groups",  # stages 1 and 2
    "fp32_partitioned_groups_flat",  # stage 3
    "fp32_groups_flat_partition",  # bf16 without ZeRO
)


PLAIN_TENSORS = frozenset({torch.Tensor, nn.Parameter})


class TrackedStorage:
    """One storage. ``number`` is its index in the list of all storages."""

    __slots__ = ("bytes", "created_in_backward", "marks", "number", "reference")

    def __init__(self, number: int, marks: int, created_in_backward: bool) -> None:
        self.number, self.marks, self.created_in_backward = number, marks, created_in_backward
        self.bytes = 0
        self.reference: Any = None


class MemoryRecorder(TorchDispatchMode):
    """``with MemoryRecorder() as memory: …; memory.summary()``."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, TrackedStorage] = {}  # by the address of the StorageImpl
        self.all: list[TrackedStorage] = []
        self.changes: list[tuple[float, int, int]] = []  # (time, number, change in bytes)
        self.phases: list[tuple[str, float, int, float, int]] = []  # name, start, changes before, …
        self.open_phases: list[str] = []
        self.units: list[list[Any]] = []  # of FSDP2: see unit_recorder
        self.records_units = False
        self.modules: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self.engines: weakref.WeakSet[Any] = weakref.WeakSet()  # of DeepSpeed
        self.hooked = WeakIdKeyDictionary()
        self.depth = 0  # of module calls
        self.wait_left_s = MAX_WAIT_S
        self.communicates = False  # whether there has been a collective
        self.exits = contextlib.ExitStack()

    # ---- storages ----

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Without this, torch imports torch._dynamo to exclude it: over 1 s in every rank."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        are_plain = PLAIN_TENSORS.issuperset(types) or all(map(_is_one_storage, types))
        if not are_plain and any(issubclass(kind, FakeTensor) for kind in types):
            return func(*args, **kwargs)  # shapes only: DTensor infers an operator's output
        differentiable = False
        grad_on = torch.is_grad_enabled()
        communicates = _communicates(func)
        self.communicates |= communicates
        for tensor in tensors_in((args, kwargs) if kwargs else args):
            needs_grad = grad_on and tensor.requires_grad
            differentiable |= needs_grad
            marks = COMMUNICATED if communicates else 0
            if needs_grad and not tensor.is_leaf:
                marks |= FORWARD  # also from an autograd.Function, which runs without gradients
            elif needs_grad:
                marks |= USED
                if isinstance(tensor, nn.Parameter):
                    marks |= LEAF
                    self._watch_gradient_of(tensor)
            self._track(tensor, marks)
        if not are_plain:
            return NotImplemented  # a DTensor: operators on its local tensors come separately
        result = func(*args, **kwargs)
        initial_mark = 0
        if differentiable or (grad_on and self.depth and "backward" not in self.open_phases):
            initial_mark = FORWARD
        for tensor in tensors_in(result):
            self._track(tensor, COMMUNICATED if communicates else 0, initial_mark)
        return result

    def _track(self, tensor: torch.Tensor, marks: int, initial_mark: int = 0) -> None:
        local = _local(tensor)
        if local.is_meta or isinstance(local, FakeTensor):
            return
        try:
            storage = local.untyped_storage()
        except (RuntimeError, NotImplementedError):  # a sparse tensor has none
            return
        known = self.live.get(storage._cdata)
        if known is None:
            known = self._begin(storage, initial_mark)
        known.marks |= marks
        if known.bytes != (now := storage.nbytes()):
            self._change(known, now)

    def _begin(self, storage: torch.UntypedStorage, initial_mark: int) -> TrackedStorage:
        address = storage._cdata
        tracked = TrackedStorage(len(self.all), initial_mark, "backward" in self.open_phases)
        self.all.append(tracked)
        self.live[address] = tracked

        def freed(_: object) -> None:
            self._change(tracked, 0)
            if self.live.get(address) is tracked:
                del self.live[address]

        tracked.reference = weakref.ref(storage, freed)
        return tracked

    def wait_for_releases(self) -> None:
        """Wait until gloo's threads have released the tensors of completed collectives.

        They do so some time after the main thread's wait returns.  If a student's own thread
        never becomes idle, all these waits together take MAX_WAIT_S.
        """
        start = time.monotonic()
        if self.communicates and not thread.become_idle(thread.others_are_busy, self.wait_left_s):
            self.wait_left_s -= time.monotonic() - start

    def _change(self, tracked: TrackedStorage, now_bytes: int) -> None:
        if now_bytes != tracked.bytes:
            self.changes.append((time.monotonic(), tracked.number, now_bytes - tracked.bytes))
            tracked.bytes = now_bytes

    # ---- marks ----

    def _mark(self, tensors: Iterable[Any], mark: int) -> None:
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                self._track(tensor, mark)

    def _watch_gradient_of(self, leaf: torch.Tensor) -> None:
        if leaf not in self.hooked:
            self.hooked[leaf] = True
            leaf.register_hook(lambda gradient: self._mark((gradient,), GRADIENT))

    def _mark_modules(self) -> None:
        for module in list(self.modules):
            for parameter in module.parameters():
                self._mark((parameter, getattr(parameter, "ds_tensor", None)), OWNED)
                self._mark((parameter.grad,), GRADIENT)

    def _mark_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        # Without modules, the parameters are the tensors used with gradients on.
        modules_own = any(True for module in self.modules for _ in module.parameters())
        parameters = OWNED if modules_own else OWNED | USED
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                is_parameter = self._marks_of(_local(parameter)) & parameters
                self._mark((parameter,), OWNED if is_parameter else MASTER)
                self._mark((parameter.grad,), GRADIENT)
                self._mark(tensors_in(optimizer.state.get(parameter, {})), STATE)

    def _mark_engines(self) -> None:
        """DeepSpeed's buffers: partitioned gradients, and buckets in flight."""
        for engine in self.engines:
            optimizer = engine.optimizer
            for name in ("averaged_gradients", "grad_partitions_flat_buffer"):
                self._mark(tensors_in(getattr(optimizer, name, None)), GRADIENT)
            for name in DEEPSPEED_MASTERS:  # in case no step follows
                self._mark(tensors_in(getattr(optimizer, name, None)), MASTER)
            for bucket in getattr(optimizer, "ipg_buckets", {}).values():
                self._mark(tensors_in(bucket.buffer), COMMUNICATED)

    def _marks_of(self, tensor: torch.Tensor) -> int:
        tracked = self.live.get(tensor.untyped_storage()._cdata)
        return tracked.marks if tracked else 0

    # ---- phases ----

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A named part of the run; nested phases with the same name count as one."""
        if name in self.open_phases:
            yield
            return
        self.open_phases.append(name)
        start, before = time.monotonic(), len(self.changes)
        try:
            yield
        finally:
            self.open_phases.remove(name)
            self.phases.append((name, start, before, time.monotonic(), len(self.changes)))

    @contextlib.contextmanager
    def backward(self) -> Iterator[None]:
        """The backward phase; at its end, marks the storages that remain."""
        is_outermost = "backward" not in self.open_phases
        with self.phase("backward"):
            yield
            self._mark_engines()
            if is_outermost:
                self.wait_for_releases()  # or a bucket in flight would count as left over
                for tracked in list(self.live.values()):
                    if tracked.created_in_backward:
                        tracked.marks |= LEFT_OVER
                self._mark_modules()

    def __enter__(self) -> MemoryRecorder:
        # Register hooks before recording starts.
        self._watch_modules()
        self._watch_optimizers()
        self._wrap(torch.autograd, "_engine_run_backward", self.backward)
        self._wrap_resize()
        if "deepspeed" in sys.modules:
            self._watch_deepspeed()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.exits.close()
        self._mark_modules()

    def _watch_modules(self) -> None:
        inside: list[contextlib.ExitStack] = []

        def before(module: nn.Module, _: Any) -> None:
            self.depth += 1
            if self.depth == 1:
                inside.append(contextlib.ExitStack())
                if torch.is_grad_enabled():
                    inside[-1].enter_context(self.phase("forward"))
                self.modules.add(module)
                self._mark_modules()
                if not self.records_units:  # FSDP2 may have been imported since
                    self.records_units = record_units(self.units, self.exits)

        def after(*_: Any) -> None:
            self.depth -= 1
            if self.depth == 0:
                inside.pop().close()

        hooks = nn.modules.module
        for handle in (
            hooks.register_module_forward_pre_hook(before),
            hooks.register_module_forward_hook(after, always_call=True),
        ):
            self.exits.callback(handle.remove)

    def _watch_optimizers(self) -> None:
        inside: list[contextlib.ExitStack] = []

        def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            self._mark_optimizer(optimizer)
            inside.append(contextlib.ExitStack())
            inside[-1].enter_context(self.phase("step"))

        def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
            self._mark_optimizer(optimizer)
            inside.pop().close()

        for handle in (
            register_optimizer_step_pre_hook(before),
            register_optimizer_step_post_hook(after),
        ):
            self.exits.callback(handle.remove)

    def _watch_deepspeed(self) -> None:
        from deepspeed.runtime.engine import DeepSpeedEngine

        def backward(engine: Any) -> contextlib.AbstractContextManager[None]:
            self.engines.add(engine)
            return self.backward()

        self._wrap(DeepSpeedEngine, "backward", backward, pass_self=True)
        self._wrap(DeepSpeedEngine, "step", lambda: self.phase("step"))

    def _wrap(
        self, owner: Any, name: str, context: Callable[..., Any], pass_self: bool = False
    ) -> None:
        """Run ``owner.name`` inside a context until this recorder exits."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with context(*args[:1]) if pass_self else context():
                return original(*args, **kwargs)

        setattr(owner, name, wrapped)
        self.exits.callback(setattr, owner, name, original)

    def _wrap_resize(self) -> None:
        """FSDP frees and refills storages without an operator."""
        original = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = original(storage, size)
            if tracked := self.live.get(storage._cdata):
                self._change(tracked, storage.nbytes())
            return result

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign, assignment]
        self.exits.callback(setattr, torch.UntypedStorage, "resize_", original)

    # ---- summary ----

    def summary(self) -> dict[str, Any]:
        """The whole record as plain data, for `RankMemory.from_summary`."""
        categories = [CATEGORIES.index(category_of(tracked.marks)) for tracked in self.all]
        rows = np.array(categories, dtype=np.int64)
        # A copy: gloo's threads may release a collective's tensors at any time, even now.
        changes = list(self.changes)
        live = np.zeros((len(changes) + 1, len(CATEGORIES)), dtype=np.int64)  # [T + 1, C]
        numbers = np.array([number for _, number, _ in changes], dtype=np.int64)
        if len(numbers):
            deltas = np.array([change for _, _, change in changes], dtype=np.int64)
            live[np.arange(1, len(live)), rows[numbers]] = deltas
        live = live.cumsum(axis=0)
        times = [moment for moment, _, _ in changes]
        total = live.sum(axis=1)
        peak = int(total.argmax())
        kept = _kept(total)
        return {
            "times": [times[max(i - 1, 0)] if times else time.monotonic() for i in kept],
            "live": live[kept].T.tolist(),
            "peak": [times[max(peak - 1, 0)] if times else time.monotonic(), live[peak].tolist()],
            "peaks": live.max(axis=0).tolist(),
            "units": self.units,
            "phases": [
                [
                    *(name, start, end),
                    live[after].tolist(),
                    live[before + int(total[before : after + 1].argmax())].tolist(),
                ]
                for name, start, before, end, after in sorted(self.phases, key=lambda p: p[1])
            ],
        }


def category_of(marks: int) -> str:
    return next((meaning for mark, meaning in CATEGORY_OF_MARK.items() if marks & mark), "other")


def _kept(total: np.ndarray) -> list[int]:
    """Indices to keep of a long timeline: the highest and lowest value of each short interval."""
    if len(total) <= MAX_SAMPLES:
        return list(range(len(total)))
    kept = {0, len(total) - 1}
    for interval in np.array_split(np.arange(len(total)), MAX_SAMPLES // 2):
        kept |= {int(interval[total[interval].argmax()]), int(interval[total[interval].argmin()])}
    return sorted(kept)


@functools.cache
def _communicates(operator: Any) -> bool:
    return operator.namespace in ("c10d", "_c10d_functional")


def _is_one_storage(kind: type) -> bool:
    """Whether operators run on the tensor itself: true of bitsandbytes' Params4bit, not DTensor."""
    return kind.__torch_dispatch__ is torch.Tensor.__torch_dispatch__  # type: ignore[attr-defined]


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or this rank's local part of a DTensor."""
    if type(tensor) in PLAIN_TENSORS:
        return tensor
    local = getattr(tensor, "_local_tensor", None)
    return tensor if local is None else local
