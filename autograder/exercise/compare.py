"""How an output differs from the expected one: in type, dtype, shape or value."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad

from autograder.exercise.attempt import Finding, shorten
from autograder.guest.case import Plain

# What differs, in general terms, and the evidence, which may show inputs and sizes.
Difference = tuple[str, str] | None
BLOCK = 64  # elements
MISSING_RETURN = ": is a return missing?"
_QUOTE = reprlib.Repr()
_QUOTE.maxstring = _QUOTE.maxother = 100

# As in torch.testing.assert_close: (relative, absolute) by dtype; exact if not listed.
TOLERANCE = {
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-11, 1e-11),
}


def find_difference(
    expected: Sequence[Plain], outputs: Sequence[Plain], tolerance: float | None = None
) -> Finding | None:
    """The first rank whose output differs, or None. Both arguments are lists by rank."""
    for rank, wanted in enumerate(expected):
        if found := difference(wanted, outputs[rank], tolerance):
            if len(expected) == 1:
                return Finding("your answer", *found, who_if_hidden="your answer")
            return Finding(f"rank {rank}", *found)
    return None


def equal(expected: Plain, got: Plain, tolerance: float | None = None) -> bool:
    return difference(expected, got, tolerance) is None


def difference(expected: Plain, got: Plain, tolerance: float | None = None) -> Difference:
    try:
        return _difference(expected, got, tolerance)
    except (ValueError, OverflowError, RuntimeError) as error:  # for instance, 10**5000
        return "cannot be compared with the expected output", shorten(str(error))


def with_key(differs: str, evidence: str) -> str:
    """The evidence with the dict key it was found in, for use with another mistake's name."""
    key = differs.partition(" in ")[2]
    evidence = evidence.removesuffix(MISSING_RETURN)  # that name says what is missing
    return f"{key}: {evidence}" if key and evidence else evidence


def _difference(expected: Plain, got: Plain, tolerance: float | None) -> Difference:
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
        return "has the wrong type", f"{_type_name(got)}, expected {_type_name(expected)}"
    if expected != got:
        return "has the wrong value", f"{_QUOTE.repr(got)}, expected {_QUOTE.repr(expected)}"
    return None


@dataclass(frozen=True)
class Sums:
    """Replaces a large tensor in a students' copy: the sum of each block of BLOCK elements.

    It depends on every element and takes a fraction of the space.
    """

    sums: torch.Tensor
    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Sums:
        elements = tensor.detach().flatten().double()
        blocks = pad(elements, (0, -len(elements) % BLOCK)).view(-1, BLOCK)
        return cls(blocks.sum(1).to(tensor.dtype), tensor.dtype, tuple(tensor.shape))


def _tensor_difference(
    expected: torch.Tensor | Sums, got: Plain, tolerance: float | None
) -> Difference:
    if not isinstance(got, torch.Tensor):
        return "should give a tensor", _what_it_is(got)
    if got.layout != torch.strided or got.device.type != "cpu":
        return "should give a dense CPU tensor", f"{got.layout} on {got.device}"
    if got.dtype != expected.dtype:
        return "has the wrong dtype", f"{got.dtype}, expected {expected.dtype}"
    if got.shape != expected.shape:
        return "has the wrong shape", f"{tuple(got.shape)}, expected {tuple(expected.shape)}"
    rtol, atol = TOLERANCE.get(expected.dtype, (0.0, 0.0))
    if tolerance is not None:
        rtol = atol = tolerance
    block = 1  # elements of an output in each element of `expected`
    if isinstance(expected, Sums):
        block, rtol = BLOCK, rtol * BLOCK**0.5
        expected, got, atol = expected.sums, Sums.of(got).sums, rtol
    if torch.equal(got, expected):  # the usual case, and much faster
        return None
    wrong = _wrong_elements(got, expected, rtol, atol)
    if not wrong.any():
        return None
    first = tuple(int(i) for i in wrong.nonzero()[0])
    where = f"element {first[0] if len(first) == 1 else first} is"
    if block > 1:
        where = f"the sum of {block} elements starting at {first[0] * block:,} is"
    return (
        "has wrong values",
        f"{where} {_different(got[first].item(), expected[first].item())}; "
        f"{int(wrong.sum()):,} of {wrong.numel():,}{' such sums' * (block > 1)} differ",
    )


def _wrong_elements(
    got: torch.Tensor, expected: torch.Tensor, rtol: float, atol: float
) -> torch.Tensor:
    """Where they are not close, as torch.isclose defines it, which takes up to ten times as long:
    it also looks for infinities and NaN, of which there are none if the largest difference is
    finite.  A single False if they are close everywhere."""
    if expected.is_floating_point():
        distance = (got - expected).abs_()
        largest = distance.max()
        if largest <= atol:
            return torch.tensor(False)
        if largest.isfinite():
            return distance > expected.abs().mul_(rtol).add_(atol)
    return ~torch.isclose(got, expected, rtol=rtol, atol=atol, equal_nan=True)


def _different(got: float, expected: float) -> str:
    """With as many digits as it takes to see a difference."""
    if isinstance(expected, int) and abs(expected) >= 10**6:
        return f"{got:,}, expected {expected:,}"
    digits = 6 if f"{got:g}" != f"{expected:g}" else 9
    return f"{got:.{digits}g}, expected {expected:.{digits}g}"


def _dict_difference(expected: dict[str, Plain], got: Plain, tolerance: float | None) -> Difference:
    if not isinstance(got, dict):
        return "should give a dict", _what_it_is(got)
    for key, wanted in expected.items():
        if key not in got:
            return f"lacks {key!r}", f"it has {_QUOTE.repr(list(got))}"
        if found := _difference(wanted, got[key], tolerance):
            evidence = found[1] if got[key] is None else found[1].removesuffix(MISSING_RETURN)
            return f"{found[0]} in {key!r}", evidence
    return None


def _list_difference(expected: Sequence[Plain], got: Plain, tolerance: float | None) -> Difference:
    if type(got) is not type(expected):
        return f"should give a {type(expected).__name__}", _what_it_is(got)
    if len(got) != len(expected):
        return "has the wrong length", f"length {len(got)}, expected {len(expected)}"
    for index, (wanted, item) in enumerate(zip(expected, got, strict=True)):
        if found := _difference(wanted, item, tolerance):
            mistake, evidence = found[0], found[1].removesuffix(MISSING_RETURN)
            if mistake.startswith("should give "):
                mistake = f"has an item that should be {mistake.removeprefix('should give ')}"
            if isinstance(expected, tuple) and all(map(is_number, (*expected, *got))):
                return mistake, f"{_joined(got)}, expected {_joined(expected)}"
            return mistake, evidence if len(expected) == 1 else _at_index(index, evidence)
    return None


def _at_index(index: int, evidence: str) -> str:
    """``at index 1: …``, or in a list of lists ``at index [1][2]: …``."""
    nested = re.match(r"at index (\d+|(?:\[\d+\])+): ", evidence)
    if nested is None:
        return f"at index {index}: {evidence}"
    inner = nested[1] if nested[1].startswith("[") else f"[{nested[1]}]"
    return f"at index [{index}]{inner}: {evidence[nested.end() :]}"


def is_number(value: Plain) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _joined(numbers: Sequence[float]) -> str:
    return " and ".join(map(_formatted, numbers))


def _number_difference(expected: float, got: Plain, tolerance: float | None) -> Difference:
    """3.0 equals 3, and so does a 0-dim tensor or array of that value."""
    if isinstance(got, torch.Tensor | np.ndarray) and got.ndim == 0:
        got = got.item()
    if not is_number(got):
        return "should give a number", _what_it_is(got)
    near = 1e-9 if tolerance is None else tolerance
    # math.isclose would round whole numbers above 2^53 to floats.
    is_near = math.isclose(got, expected, rel_tol=near, abs_tol=near) if near else got == expected
    if not is_near:
        return "gives the wrong number", f"{_formatted(got)}, expected {_formatted(expected)}"
    return None


def _formatted(number: float) -> str:
    """Fractions with 6 digits: feedback masks numbers of 10 or more digits (evaluation.wording)."""
    if isinstance(number, int):
        return f"{number:,}"
    return f"{number:,.6g}" if abs(number) < 1e6 else f"{round(number, 3):,.15g}"


def _what_it_is(got: Plain) -> str:
    return f"it is None{MISSING_RETURN}" if got is None else f"it is {_type_name(got)}"


def _type_name(value: Any) -> str:
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def size_of(value: Plain) -> int:
    """Approximate bytes of a value: its tensors, and an overhead for each object in it."""
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
