"""The hidden half of an exercise in a students' copy: its results for the visible cases, as data.

``python -m autograder release`` writes one file per exercise,
``exercises/labNN_name/recorded/answer.plain``: for each case a fingerprint of its inputs, which the
copy draws again, and the case's facts, limits, correct outputs, the outputs of each named mistake
and the calls of the course's solution.  Equal tensors are stored once.
"""

from __future__ import annotations

import hashlib
import lzma
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from autograder.exercise.budget import Limit, by_rank
from autograder.exercise.call_difference import RightCalls
from autograder.exercise.compare import BLOCK, Sums, equal
from autograder.exercise.form import Exercise, Outputs
from autograder.guest.case import Case, Plain
from shardlab.ranks import codec

SUFFIX = ".plain"  # lzma of what shardlab.ranks.codec packs: JSON, then safetensors
InputsOf = Callable[[Case], Sequence[Plain]]
# For sums of inputs: on another kind of CPU the last digits may differ.
INPUT_TOLERANCE = 1e-4
# Of one case, for its correct outputs and again for those of all its mistakes.  If they take more,
# tensors of more than the first of these numbers of elements are stored as sums, then those of more
# than the second.  Mistakes whose outputs still do not fit are not named.
MAX_BYTES = 200_000
MAX_WHOLE_ELEMENTS = 4096, BLOCK


class OtherInputs(LookupError):
    """This copy draws different inputs from the ones its references were recorded for."""


@dataclass(frozen=True)
class RecordedHalf:
    """See `form.Half`. Raises OtherInputs if package versions differ from the release's."""

    path: Path
    cases: Sequence[Case] = ()

    @cached_property
    def _content(self) -> dict[str, Any]:
        return codec.decode_plain(lzma.decompress(self.path.read_bytes()))

    def _of(self, case: Case, part: str) -> Any:
        # A copy, so that callers may change it.
        return _unpacked(self._content["cases"][case.name][part], self._content["tensors"])

    def facts(self, case: Case) -> Mapping[str, Plain]:
        return self._of(case, "facts")

    def draw(self, case: Case, rng: np.random.Generator) -> Plain:
        raise LookupError(f"{case.name}: the students' copy has no hidden cases")

    def expected(self, case: Case, inputs: Sequence[Plain]) -> Outputs:
        if not equal(self._of(case, "inputs"), fingerprint(list(inputs)), INPUT_TOLERANCE):
            raise OtherInputs(
                f"{case.name}: this copy draws different inputs from the ones its references were "
                "recorded for. Do its packages match requirements.lock? `make lab` installs them"
            )
        return self._of(case, "expected")

    def mistakes(
        self, case: Case, inputs: Sequence[Plain], among: Container[str] | None = None
    ) -> Iterator[tuple[str, Outputs | None]]:
        for message, outputs in self._of(case, "mistakes"):
            if among is None or message in among:
                yield message, outputs

    def limit(self, label: str, case: Case) -> Limit | None:
        limit = self._of(case, "limits").get(label)
        return None if limit is None else Limit(*limit)

    def solution(self) -> None:
        return None

    def right_calls(self, case: Case) -> RightCalls | None:
        return self._of(case, "calls")


def fingerprint(value: Plain) -> Plain:
    """Dtypes, shapes and sums of the elements: the same for the same inputs on any machine."""
    if isinstance(value, torch.Tensor | np.ndarray):
        tensor = torch.as_tensor(value)
        total = float(tensor.double().nan_to_num(1.0, 2.0, 3.0).abs().sum())
        return [str(tensor.dtype), list(tensor.shape), total]
    if isinstance(value, Mapping):
        return [[str(key), fingerprint(item)] for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [fingerprint(item) for item in value]
    return value


def record(
    exercise: Exercise,
    inputs_of: InputsOf,
    facts: Mapping[str, Plain],
    calls_of: Callable[[Case], RightCalls | None] = lambda case: None,
) -> bytes:
    """The file's content. ``inputs_of(case)`` are the inputs of a student's own check,
    ``calls_of(case)`` the calls of the course's solution."""
    store = _Store()
    visible = [case for case in exercise.cases if not case.hidden]
    cases = {
        case.name: _of_case(exercise, case, inputs_of(case), store)
        | {"calls": store.packed(calls_of(case))}
        for case in visible
    }
    content = {"facts": dict(facts), "cases": cases, "tensors": store.tensors}
    return lzma.compress(codec.encode_plain(content))


def _of_case(
    exercise: Exercise, case: Case, inputs: Sequence[Plain], store: _Store
) -> dict[str, Plain]:
    half = exercise.required_half
    limits = {
        budget.label: [by_rank(part, case.world_size) for part in (limit.most, limit.least)]
        for budget in exercise.budgets
        if not budget.limit and (limit := half.limit(budget.label, case))
    }
    expected = store.packed(_fitted(list(half.expected(case, inputs)), store))
    mistakes, before = [], store.taken_bytes
    for message, outputs in _fitted(list(half.mistakes(case, inputs)), store):
        left_bytes = MAX_BYTES - (store.taken_bytes - before)
        kept = outputs if store.new_bytes(outputs) <= left_bytes else None
        mistakes.append(store.packed([message, kept]))
    return {
        "inputs": store.packed(fingerprint(inputs)),
        "facts": store.packed(dict(case.params)),  # `facts` has been merged into them
        "limits": store.packed(limits),
        "expected": expected,
        "mistakes": {"list": mistakes},
    }


@dataclass
class _Store:
    tensors: list[torch.Tensor] = field(default_factory=list)
    indices: dict[bytes, int] = field(default_factory=dict)
    taken_bytes: int = 0

    def packed(self, value: Plain) -> Plain:
        """Each tensor is replaced by its index: {"tensor": 3}."""
        if isinstance(value, torch.Tensor):
            key = _digest(value)
            if key not in self.indices:
                self.indices[key] = len(self.tensors)
                self.tensors.append(value.detach().clone())
                self.taken_bytes += value.nbytes
            return {"tensor": self.indices[key]}
        if isinstance(value, Sums):
            of = [str(value.dtype).removeprefix("torch."), list(value.shape)]
            return {"sums": [self.packed(value.sums), *of]}
        if isinstance(value, Mapping):
            return {"dict": [[key, self.packed(item)] for key, item in value.items()]}
        if isinstance(value, list | tuple):
            return {type(value).__name__: [self.packed(item) for item in value]}
        return value

    def new_bytes(self, value: Plain) -> int:
        new = {_digest(tensor): tensor.nbytes for tensor in _tensors(value)}
        return sum(nbytes for digest, nbytes in new.items() if digest not in self.indices)


def _tensors(value: Plain) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Sums):
        yield value.sums
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(item)


def _fitted(outputs: Plain, store: _Store) -> Plain:
    """With as few tensors as sums as it takes, or with all that can be."""
    form = outputs
    for max_elements in MAX_WHOLE_ELEMENTS:
        if store.new_bytes(form) > MAX_BYTES:
            form = _in_sums(outputs, max_elements)
    return form


def _in_sums(value: Plain, max_elements: int) -> Plain:
    if isinstance(value, torch.Tensor):
        return Sums.of(value) if value.numel() > max_elements else value
    if isinstance(value, Mapping):
        return {key: _in_sums(item, max_elements) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_in_sums(item, max_elements) for item in value)
    return value


def _digest(tensor: torch.Tensor) -> bytes:
    return hashlib.sha256(codec.encode_plain(tensor)).digest()


def _unpacked(value: Plain, tensors: Sequence[torch.Tensor]) -> Plain:
    if not isinstance(value, dict):
        return value
    ((kind, inside),) = value.items()
    if kind == "tensor":
        return tensors[inside].clone()
    if kind == "sums":
        sums, dtype, shape = inside
        return Sums(_unpacked(sums, tensors), getattr(torch, dtype), tuple(shape))
    if kind == "dict":
        return {key: _unpacked(item, tensors) for key, item in inside}
    items = [_unpacked(item, tensors) for item in inside]
    return tuple(items) if kind == "tuple" else items
