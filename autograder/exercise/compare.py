"""How an output differs from what was expected: in type, dtype, shape or value."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from autograder.exercise.attempt import Finding, shorten
from autograder.guest.case import Plain

# What differs, in general terms, and the evidence, which may show inputs and sizes.
Found = tuple[str, str] | None
RUN = 64
_QUOTE = reprlib.Repr()
_QUOTE.maxstring = _QUOTE.maxother = 100

# Those of torch.testing.assert_close: (relative, absolute) by dtype; exact where not listed.
TOLERANCE = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
}


def find_difference(
    expected: Sequence[Plain], outputs: Sequence[Plain], tolerance: float | None = None
) -> Finding | None:
    """The first rank whose output is not as expected, or None. Both are lists by rank."""
    for rank, wanted in enumerate(expected):
        if found := difference(wanted, outputs[rank], tolerance):
            if len(expected) == 1:
                return Finding("your answer", *found, anyone="your answer")
            return Finding(f"rank {rank}", *found)
    return None


def equal(expected: Plain, got: Plain, tolerance: float | None = None) -> bool:
    return difference(expected, got, tolerance) is None


def difference(expected: Plain, got: Plain, tolerance: float | None = None) -> Found:
    try:
        return _difference(expected, got, tolerance)
    except (ValueError, OverflowError, RuntimeError) as error:  # 10**5000, say
        return "cannot be compared with what was expected", shorten(str(error))


def with_key(differs: str, evidence: str) -> str:
    """The evidence, where another mistake is named by it: in which key of a dict it was found."""
    key = differs.partition(" in ")[2]
    return f"{key}: {evidence}" if key and evidence else evidence


def _difference(expected: Plain, got: Plain, tolerance: float | None) -> Found:
    if isinstance(expected, np.ndarray) and isinstance(got, np.ndarray):
        if expected.dtype != got.dtype:
            return "has the wrong dtype", f"{got.dtype}, expected {expected.dtype}"
        expected, got = torch.from_numpy(expected), torch.from_numpy(got)
    if isinstance(expected, torch.Tensor | Sums):
        return _tensor_difference(expected, got, tolerance)
    if isinstance(expected, dict):
        return _dict_difference(expected, got, tolerance)
    if isinstance(expected, list | tuple):
        return _list_difference(expected, got, tolerance)
    if is_number(expected):
        return _number_difference(expected, got, tolerance)
    if type(expected) is not type(got):
        return "has the wrong type", f"{_kind(got)}, expected {_kind(expected)}"
    if expected != got:
        return "has the wrong value", f"{_QUOTE.repr(got)}, expected {_QUOTE.repr(expected)}"
    return None


@dataclass(frozen=True)
class Sums:
    """Stands for a large tensor in a students' copy: each run of RUN elements, added up.

    Every element counts, and it takes a small part of the room.
    """

    sums: torch.Tensor
    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Sums:
        runs = [run.sum() for run in tensor.detach().flatten().double().split(RUN)]
        return cls(torch.stack(runs).to(tensor.dtype), tensor.dtype, tuple(tensor.shape))


def _tensor_difference(expected: torch.Tensor | Sums, got: Plain, tolerance: float | None) -> Found:
    if not isinstance(got, torch.Tensor):
        return "should be a tensor", _instead(got)
    if got.layout != torch.strided or got.device.type != "cpu":
        return "should be an ordinary tensor", f"{got.layout} on {got.device}"
    if got.dtype != expected.dtype:
        return "has the wrong dtype", f"{got.dtype}, expected {expected.dtype}"
    if got.shape != expected.shape:
        return "has the wrong shape", f"{tuple(got.shape)}, expected {tuple(expected.shape)}"
    rtol, atol = TOLERANCE.get(expected.dtype, (0.0, 0.0))
    if tolerance is not None:
        rtol = atol = tolerance
    run = 1  # how many elements of an output were added up for each of these
    if isinstance(expected, Sums):
        run, rtol = RUN, rtol * RUN**0.5
        expected, got, atol = expected.sums, Sums.of(got).sums, rtol
    if torch.equal(got, expected):  # most are, and this is far quicker to say
        return None
    wrong = ~torch.isclose(got, expected, rtol=rtol, atol=atol, equal_nan=True)
    if not wrong.any():
        return None
    first = tuple(int(i) for i in wrong.nonzero()[0])
    where = f"element {first[0] if len(first) == 1 else first} is"
    if run > 1:
        where = f"the sum of {run} elements from {first[0] * run:,} on is"
    return (
        "has wrong values",
        f"{where} {got[first].item():g}, expected {expected[first].item():g}; "
        f"{int(wrong.sum()):,} of {wrong.numel():,}{' such sums' * (run > 1)} differ",
    )


def _dict_difference(expected: dict[str, Plain], got: Plain, tolerance: float | None) -> Found:
    if not isinstance(got, dict):
        return "should be a dict", _instead(got)
    for key, wanted in expected.items():
        if key not in got:
            return f"lacks {key!r}", f"it has {_QUOTE.repr(list(got))}"
        if found := _difference(wanted, got[key], tolerance):
            return f"{found[0]} in {key!r}", found[1]
    return None


def _list_difference(expected: Sequence[Plain], got: Plain, tolerance: float | None) -> Found:
    if type(got) is not type(expected):
        return f"should be a {type(expected).__name__}", _instead(got)
    if len(got) != len(expected):
        return "has the wrong length", f"length {len(got)}, expected {len(expected)}"
    for index, (wanted, item) in enumerate(zip(expected, got, strict=True)):
        if found := _difference(wanted, item, tolerance):
            mistake, evidence = found
            if mistake.startswith("should be"):
                mistake = f"has an item that {mistake}"
            if isinstance(expected, tuple) and all(map(is_number, (*expected, *got))):
                return mistake, f"{_in_words(got)}, expected {_in_words(expected)}"
            return mistake, evidence if len(expected) == 1 else f"item {index}: {evidence}"
    return None


def is_number(value: Plain) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _in_words(numbers: Sequence[float]) -> str:
    return " and ".join(map(_in_digits, numbers))


def _number_difference(expected: float, got: Plain, tolerance: float | None) -> Found:
    """3.0 is 3, and so is a tensor or an array that holds this one number."""
    if isinstance(got, torch.Tensor | np.ndarray) and got.ndim == 0:
        got = got.item()
    if not is_number(got):
        return "should be a number", _instead(got)
    near = 1e-9 if tolerance is None else tolerance
    if not math.isclose(got, expected, rel_tol=near, abs_tol=near):
        return "is not the right number", f"{_in_digits(got)}, expected {_in_digits(expected)}"
    return None


def _in_digits(number: float) -> str:
    """A fraction in 6 digits: of 10 and more, feedback shows none (evaluation.wording)."""
    if isinstance(number, int):
        return f"{number:,}"
    return f"{number:,.6g}" if abs(number) < 1e6 else f"{number:,.15g}"


def _instead(got: Plain) -> str:
    return "it is None, as of a function without return" if got is None else f"it is {_kind(got)}"


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def size_of(value: Plain) -> int:
    """Bytes of a value's tensors, and some for each other thing in it."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size() + 100
    if isinstance(value, np.ndarray):
        return value.nbytes + 100
    if isinstance(value, Sums):
        return math.prod(value.shape) * value.dtype.itemsize + 100
    if isinstance(value, dict):
        return size_of(list(value.values())) + 100 * len(value)
    if isinstance(value, list | tuple):
        return sum(map(size_of, value)) + 100
    return 100 + (len(value) if isinstance(value, str | bytes) else 0)
