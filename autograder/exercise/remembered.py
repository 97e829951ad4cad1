"""A hidden half that remembers its outputs: a class has one seed, and many make the same mistake.

A reference, right or wrong, may be a training run and take longer than the ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autograder.exercise.compare import size_of
from autograder.exercise.form import Exercise, Outputs
from autograder.exercise.hidden import HiddenHalf
from autograder.guest.case import Case, Plain
from shardlab.ranks import codec

MAX_BYTES = 64_000_000  # of an exercise's outputs; what would not fit is computed each time
RIGHT = ""  # in place of a mistake's message


@dataclass
class _Known:
    """Outputs for one case's inputs, by message."""

    digest: bytes
    outputs: dict[str, Any] = field(default_factory=dict)
    size_bytes: int = 0


@dataclass
class _Memory:
    by_case: dict[str, _Known] = field(default_factory=dict)
    last: Sequence[Plain] | None = None  # inputs whose digest was computed last
    last_digest: bytes = b""

    def of(self, case: Case, inputs: Sequence[Plain]) -> _Known:
        if inputs is not self.last:
            encoded = codec.encode_any(list(inputs))
            self.last, self.last_digest = inputs, hashlib.blake2b(encoded).digest()
        known = self.by_case.get(case.name)
        if known is None or known.digest != self.last_digest:
            known = self.by_case[case.name] = _Known(self.last_digest)
        return known

    def keep(self, known: _Known, message: str, outputs: Any) -> None:
        size_bytes = size_of(outputs)
        if size_bytes + sum(each.size_bytes for each in self.by_case.values()) <= MAX_BYTES:
            known.outputs[message] = outputs
            known.size_bytes += size_bytes


def remembering(exercise: Exercise) -> Exercise:
    """The same exercise, whose references are computed once for the same inputs."""
    half = exercise.required_half
    if not isinstance(half, HiddenHalf):  # recorded outputs
        return exercise
    return replace(exercise, half=RememberedHalf(half.module, half.solution))


@dataclass(frozen=True)
class RememberedHalf(HiddenHalf):
    """``RememberedHalf(half.module, half.solution)`` gives what ``half`` gives."""

    memory: _Memory = field(default_factory=_Memory, compare=False, repr=False)

    def expected(self, case: Case, inputs: Sequence[Plain]) -> Outputs:
        known = self.memory.of(case, inputs)
        if RIGHT in known.outputs:
            found: Outputs = known.outputs[RIGHT]
            return found
        outputs = super().expected(case, inputs)
        self.memory.keep(known, RIGHT, outputs)
        return outputs

    def outputs_with(self, message: str, case: Case, inputs: Sequence[Plain]) -> Iterable[Outputs]:
        known = self.memory.of(case, inputs)
        if message in known.outputs:
            found: list[Outputs] = known.outputs[message]
            return found
        outputs = [*super().outputs_with(message, case, inputs)]
        self.memory.keep(known, message, outputs)
        return outputs
