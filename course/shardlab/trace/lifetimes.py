"""The lifetime of every tensor of one step: from the operator that created it to its release.

Mechanism: the recorder of ``run.memory`` (shardlab.trace.memory_recorder) tracks storages; this
module also records which module created each one, and between which operators it was live.  Time
counts operators that create a tensor, so two recordings of a step are equal, however busy the
machine is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from shardlab.trace.memory_recorder import MemoryRecorder, TrackedStorage, category_of
from shardlab.trace.tensors import tensors_in

KINDS = (
    "kept",  # made before backward, and live when it begins
    "recomputed",  # made by a forward pass inside backward
    "temporary",  # all others: freed before backward begins, or made in backward
)


@dataclass(frozen=True)
class Life:
    """One storage, from the operator that made it to the first that ran after it was freed.

    module: path of the module that was running; "" outside of any module, and in backward.
    """

    module: str
    operator: str
    bytes: int
    created_at: int
    freed_at: int  # > created_at; if it outlived the step, the number of operators in the step
    kind: str

    @property
    def name(self) -> str:
        """For display: "blocks.0.mlp.up: addmm"."""
        return f"{self.module}: {self.operator}" if self.module else self.operator

    @property
    def part(self) -> str:
        """The part of the model that made it: "blocks.0", "head", ""."""
        return part_of(self.module)


@dataclass(frozen=True)
class Lifetimes:
    """All tensors that a step made, except gradients of parameters, oldest first.

    phases: (name, first operator, last operator + 1) of "forward" and "backward".
    """

    lives: tuple[Life, ...]
    operators: int
    phases: tuple[tuple[str, int, int], ...]

    @cached_property
    def live_bytes(self) -> NDArray[np.int64]:
        """[operators] bytes live after each operator."""
        changes = np.zeros(self.operators + 1, np.int64)
        for life in self.lives:
            changes[life.created_at] += life.bytes
            changes[life.freed_at] -= life.bytes
        live: NDArray[np.int64] = changes.cumsum()[:-1]
        return live

    @property
    def peak_bytes(self) -> int:
        return int(self.live_bytes.max(initial=0))

    @property
    def peak_at(self) -> int:
        """The first operator after which live bytes were at their peak."""
        return int(self.live_bytes.argmax()) if self.operators else 0

    @property
    def kept_bytes(self) -> int:
        """Bytes that forward kept for backward."""
        return sum(life.bytes for life in self.lives if life.kind == "kept")

    def at(self, operator: int) -> list[Life]:
        """Tensors live after this operator, oldest first."""
        return [life for life in self.lives if life.created_at <= operator < life.freed_at]


def part_of(module: str) -> str:
    """A module's path up to its first number: "blocks.0" of "blocks.0.mlp.up"."""
    names = module.split(".")
    number = next((i for i, name in enumerate(names) if name.isdigit()), 0)
    return ".".join(names[: number + 1])


def record(model: nn.Module, step: Callable[[], object]) -> Lifetimes:
    """Run ``step``, a forward and backward pass of ``model``, and track each tensor that it makes.

    Tensors are counted by storage: views are not counted again.  Parameters, their gradients, and
    tensors made before the step, such as the batch, are left out.
    """
    recorder = _Recorder(model)
    with recorder:
        step()
    return recorder.lifetimes()


class _Recorder(MemoryRecorder):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.names = {module: name for name, module in model.named_modules()}
        self.active_modules: list[str] = []  # innermost last
        self.operators = 0  # operators so far that made a tensor
        self.made: list[_Created] = []
        self.freed_at: dict[int, int] = {}  # by storage number: operators run before it was freed
        self.spans: list[tuple[str, int, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {_address(tensor) for tensor in tensors_in((args, kwargs or {}))}
        result = super().__torch_dispatch__(func, types, args, kwargs)
        new = []
        for tensor in tensors_in(result):
            tracked = self.live.get(_address(tensor))
            if tracked is not None and tracked.bytes and _address(tensor) not in known:
                known.add(_address(tensor))
                new.append(tracked)
        if new:
            module = self.active_modules[-1] if self.active_modules else ""
            operator = _short_name(func.overloadpacket.__name__)
            self.made += [
                _Created(tracked, tracked.bytes, module, operator, self.operators)
                for tracked in new
            ]
            self.operators += 1
        return result

    def _change(self, tracked: TrackedStorage, now_bytes: int) -> None:
        super()._change(tracked, now_bytes)
        if now_bytes == 0:
            self.freed_at[tracked.number] = self.operators

    def _watch_modules(self) -> None:
        super()._watch_modules()
        hooks = nn.modules.module
        for handle in (
            hooks.register_module_forward_pre_hook(
                lambda module, _: self.active_modules.append(self.names.get(module, ""))
            ),
            hooks.register_module_forward_hook(lambda *_: self._leave(), always_call=True),
        ):
            self.exits.callback(handle.remove)

    def _leave(self) -> None:
        self.active_modules.pop()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if name == "backward" and not self.open_phases:
            self.wait_for_releases()  # or their tensors would count as kept for backward
        start, is_outermost = self.operators, name not in self.open_phases
        # A module called again inside backward is not a forward phase of the step.
        is_outermost = is_outermost and not self.open_phases
        with super().phase(name):
            yield
        if is_outermost:
            self.spans.append((name, start, self.operators))

    def lifetimes(self) -> Lifetimes:
        backward_start = next(
            (start for name, start, _ in self.spans if name == "backward"), self.operators
        )
        lives: list[Life] = []
        part = ""  # of the tensor recomputed last
        for made in self.made:
            category = category_of(made.tracked.marks)
            if category in ("parameters", "gradients", "optimizer"):
                continue
            freed_at = min(self.freed_at.get(made.tracked.number, self.operators), self.operators)
            kind, module = "temporary", made.module
            if not made.tracked.created_in_backward:
                # backward() creates the loss's gradient, of one element, before its phase begins.
                is_seed = made.operator == "ones_like" and made.created_at == backward_start - 1
                kind = (
                    "kept" if made.created_at < backward_start < freed_at and not is_seed else kind
                )
            elif category == "activations":
                # Checkpointing reruns the module's function, so only submodules are called.
                kind, module = "recomputed", module or part
                part = part_of(module)
            lives.append(Life(module, made.operator, made.bytes, made.created_at, freed_at, kind))
        return Lifetimes(tuple(lives), self.operators, _joined(self.spans))


def _joined(spans: list[tuple[str, int, int]]) -> tuple[tuple[str, int, int], ...]:
    """Merge consecutive forward passes of several modules into one phase."""
    joined: list[tuple[str, int, int]] = []
    for name, start, end in spans:
        if joined and joined[-1][0] == name:
            start = joined.pop()[1]
        joined.append((name, start, end))
    return tuple(joined)


class _Created(NamedTuple):
    tracked: TrackedStorage
    bytes: int
    module: str
    operator: str
    created_at: int


def _short_name(operator: str) -> str:
    """A shorter name for a torch operator."""
    is_attention = "scaled_dot_product" in operator
    words = "attention" + " backward" * operator.endswith("backward")
    return words if is_attention else operator.strip("_").replace("native_", "")


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
