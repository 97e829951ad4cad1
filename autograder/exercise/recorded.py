"""The hidden half of an exercise in a students' copy: what it gave for the visible cases, as data.

A file for each exercise, ``exercises/labNN_name/recorded/answer.plain``, written by ``python -m
autograder release``: for each case a fingerprint of its inputs, which are drawn again, and the
case's facts, limits, right outputs and the outputs of each named mistake.  Equal tensors are there
once.
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
from autograder.exercise.compare import Sums, equal
from autograder.exercise.form import Exercise, Outputs
from autograder.guest.case import Case, Plain
from shardlab.ranks import codec

SUFFIX = ".plain"  # as shardlab.ranks.codec packs it, and lzma: JSON, then safetensors
InputsOf = Callable[[Case], Sequence[Plain]]
NEAR = 1e-4  # of sums of inputs: another kind of CPU may differ in their last digits
# Of one case: mistakes whose outputs would take more are named in its smaller cases alone.
MOST_MISTAKES_BYTES = 100_000
# Of one case's right outputs: where they would take more, large tensors are there as sums.
MOST_WHOLE_BYTES, WHOLE_ELEMENTS = 600_000, 4096


class OtherInputs(LookupError):
    """The inputs that this copy draws are not those that its references were recorded for."""


@dataclass(frozen=True)
class RecordedHalf:
    """See `form.Half`. Raises OtherInputs where this copy's versions are not the release's."""

    path: Path
    cases: Sequence[Case] = ()

    @cached_property
    def _content(self) -> dict[str, Any]:
        return codec.decode_plain(lzma.decompress(self.path.read_bytes()))

    def _of(self, case: Case, part: str) -> Any:
        # Copies: who changes what it was given changes nothing here.
        return _unpacked(self._content["cases"][case.name][part], self._content["tensors"])

    def facts(self, case: Case) -> Mapping[str, Plain]:
        return self._of(case, "facts")

    def draw(self, case: Case, rng: np.random.Generator) -> Plain:
        raise LookupError(f"{case.name}: a students' copy has no hidden cases")

    def expected(self, case: Case, inputs: Sequence[Plain]) -> Outputs:
        if not equal(self._of(case, "inputs"), fingerprint(list(inputs)), NEAR):
            raise OtherInputs(
                f"{case.name}: this copy draws other inputs than those its references were made "
                "for. Are its packages those of requirements.lock? `make lab` installs them"
            )
        return self._of(case, "expected")

    def mistakes(
        self, case: Case, inputs: Sequence[Plain], among: Container[str] | None = None
    ) -> Iterator[tuple[str, Outputs | None]]:
        for said, outputs in self._of(case, "mistakes"):
            if among is None or said in among:
                yield said, outputs

    def limit(self, label: str, case: Case) -> Limit | None:
        limit = self._of(case, "limits").get(label)
        return None if limit is None else Limit(*limit)


def fingerprint(value: Plain) -> Plain:
    """The same for the same inputs on any machine: dtypes, shapes, sums of what tensors hold."""
    if isinstance(value, torch.Tensor | np.ndarray):
        tensor = torch.as_tensor(value)
        total = float(tensor.double().nan_to_num(1.0, 2.0, 3.0).abs().sum())
        return [str(tensor.dtype), list(tensor.shape), total]
    if isinstance(value, Mapping):
        return [[str(key), fingerprint(item)] for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [fingerprint(item) for item in value]
    return value


def record(exercise: Exercise, inputs_of: InputsOf, facts: Mapping[str, Plain]) -> bytes:
    """The file of an exercise. ``inputs_of(case)`` are those of a student's own check."""
    store = _Store()
    visible = [case for case in exercise.cases if not case.hidden]
    cases = {case.name: _of_case(exercise, case, inputs_of(case), store) for case in visible}
    content = {"facts": dict(facts), "cases": cases, "tensors": store.tensors}
    return lzma.compress(codec.encode_plain(content))


def _of_case(
    exercise: Exercise, case: Case, inputs: Sequence[Plain], store: _Store
) -> dict[str, Plain]:
    half = exercise.decides
    limits = {
        budget.label: [by_rank(part, case.world_size) for part in (limit.most, limit.least)]
        for budget in exercise.budgets
        if not budget.limit and (limit := half.limit(budget.label, case))
    }
    expected = list(half.expected(case, inputs))
    if store.new_bytes(expected) > MOST_WHOLE_BYTES:
        expected = _in_sums(expected)
    expected = store.packed(expected)
    mistakes, before = [], store.taken_bytes
    for said, outputs in half.mistakes(case, inputs):
        room = MOST_MISTAKES_BYTES - (store.taken_bytes - before)
        forms = (outputs, _in_sums(outputs))
        kept = next((form for form in forms if store.new_bytes(form) <= room), None)
        mistakes.append(store.packed([said, kept]))
    return {
        "inputs": store.packed(fingerprint(inputs)),
        "facts": store.packed(half.facts(case)),
        "limits": store.packed(limits),
        "expected": expected,
        "mistakes": {"list": mistakes},
    }


@dataclass
class _Store:
    tensors: list[torch.Tensor] = field(default_factory=list)
    numbers: dict[bytes, int] = field(default_factory=dict)
    taken_bytes: int = 0

    def packed(self, value: Plain) -> Plain:
        """With a number in the place of each tensor: {"tensor": 3}."""
        if isinstance(value, torch.Tensor):
            key = _digest(value)
            if key not in self.numbers:
                self.numbers[key] = len(self.tensors)
                self.tensors.append(value.detach().clone())
                self.taken_bytes += value.nbytes
            return {"tensor": self.numbers[key]}
        if isinstance(value, Sums):
            of = [str(value.dtype).removeprefix("torch."), list(value.shape)]
            return {"sums": [self.packed(value.sums), *of]}
        if isinstance(value, Mapping):
            return {"dict": [[key, self.packed(item)] for key, item in value.items()]}
        if isinstance(value, list | tuple):
            return {type(value).__name__: [self.packed(item) for item in value]}
        return value

    def new_bytes(self, value: Plain) -> int:
        value = value.sums if isinstance(value, Sums) else value
        if isinstance(value, torch.Tensor):
            return 0 if _digest(value) in self.numbers else value.nbytes
        items = value.values() if isinstance(value, Mapping) else value
        return sum(map(self.new_bytes, items)) if isinstance(value, Mapping | list | tuple) else 0


def _in_sums(value: Plain) -> Plain:
    if isinstance(value, torch.Tensor):
        return Sums.of(value) if value.numel() > WHOLE_ELEMENTS else value
    if isinstance(value, Mapping):
        return {key: _in_sums(item) for key, item in value.items()}
    return type(value)(map(_in_sums, value)) if isinstance(value, list | tuple) else value


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
