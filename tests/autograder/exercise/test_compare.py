"""Outputs are compared in type, dtype, shape and value, on every rank."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from autograder.exercise.compare import Sums, equal, find_difference, size_of


@pytest.mark.parametrize(
    ("expected", "got", "words"),
    [
        (torch.ones(3), torch.ones(3, dtype=torch.float64), "dtype"),
        (torch.ones(3), torch.ones(4), "shape"),
        (torch.ones(3), torch.tensor([1.0, 1.0, 2.0]), "wrong values"),
        (torch.ones(3), torch.tensor([1.0, 1.0, float("nan")]), "wrong values"),
        (torch.ones(3), [1.0, 1.0, 1.0], "should give a tensor"),
        (torch.ones(3), None, "should give a tensor"),
        (np.ones(3), np.ones(3, dtype=np.float32), "dtype"),
        ([1, 2], (1, 2), "should give a list"),
        ([1, 2], [1], "length"),
        ([1, [2, 3]], [1, [2, 4]], "gives the wrong number"),
        ({"a": 1}, {"b": 1}, "lacks 'a'"),
        ({"a": 1}, [1], "should give a dict"),
        (3, True, "should give a number"),
        (3, float("nan"), "gives the wrong number"),
        pytest.param(3, 10**5000, "cannot be compared", id="too large for a float"),
        (3, torch.tensor(4), "gives the wrong number"),
        (3, torch.tensor([3]), "should give a number"),
        ([(0, 1)], [[0, 1]], "has an item that should be a tuple"),
        (True, 1, "type"),
        ("1f1b", "gpipe", "value"),
    ],
)
def test_differences_are_named(expected, got, words):
    found = find_difference([expected], [got])
    assert found
    assert words in found.mistake


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (torch.ones(3), torch.ones(3) + 1e-7),
        (torch.tensor([float("nan")]), torch.tensor([float("nan")])),
        (3, 3.0),
        (0, 0.0),
        (3, torch.tensor(3)),
        (3.0, np.array(3)),
        ({"a": 1}, {"a": 1, "evidence": None}),
        ((1, "x", None), (1, "x", None)),
    ],
)
def test_equal_outputs(expected, got):
    assert equal(expected, got)


def test_float64_is_compared_more_strictly_than_torch_does():
    """At torch's 1e-7, sums of a few fractions in 16 bits passed for 3 % of all seeds."""
    expected = torch.tensor([864.87], dtype=torch.float64)
    assert not equal(expected, expected * (1 + 1e-9))
    assert equal(expected, expected * (1 + 1e-13))  # the same sum in another order


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("special", [0.0, float("nan"), float("inf"), -float("inf"), 6e4])
@pytest.mark.parametrize("size", [1e-9, 1e-6, 1e-3, 1.0])
def test_floats_are_close_where_torch_isclose_is_true(dtype, special, size):
    torch.manual_seed(0)
    expected = torch.randn(40, dtype=torch.float64).mul_(100)
    got = expected + size * torch.randn(40)
    for at, values in ((3, (special, special)), (5, (special, 1.0)), (7, (-special, special))):
        pair = expected.to(dtype), got.to(dtype)
        for tensor, value in zip(pair, values, strict=True):
            tensor[at] = value
        close = torch.isclose(pair[1], pair[0], rtol=1e-4, atol=1e-4, equal_nan=True)
        found = find_difference([pair[0]], [pair[1]], 1e-4)
        assert (found is None) == bool(close.all())
        if found:
            assert f"; {int((~close).sum())} of 40 differ" in found.evidence


def test_integers_must_be_equal():
    assert not equal(torch.tensor([10**9]), torch.tensor([10**9 + 1]))


def test_tolerance_may_be_set():
    assert equal(1.0, 1.01, tolerance=0.02)
    assert not equal(1.0, 1.05, tolerance=0.02)


def test_every_rank_is_compared():
    ones = torch.ones(2)
    found = find_difference([ones] * 4, [ones, ones, ones, torch.zeros(2)])
    assert found
    assert found.text(hidden=False).startswith("rank 3 has wrong values (element 0 is 0, expected")
    assert found.text(hidden=True) == "a rank has wrong values"


def evidence_of(expected: object, got: object) -> str:
    found = find_difference([expected], [got])
    assert found
    return found.evidence


def test_the_evidence_describes_the_output():
    sizes = {"parameters": 1, "activations": 2}
    assert evidence_of([sizes], [{"parameters": 1, "activation": 2}]) == (
        "it has ['parameters', 'activation']"
    )
    missing = "it is None: is a return missing?"
    assert evidence_of([1, 2], None) == missing
    assert evidence_of({"returned": [1, 2]}, {"returned": None}) == missing
    # a gradient that the answer has set to None, not what it returned
    assert evidence_of({"step 0": {"grad": [1]}}, {"step 0": {"grad": None}}) == "it is None"
    assert evidence_of([1, [2]], [1, None]) == "at index 1: it is None"
    assert evidence_of([1, 2], [1, 3]) == "at index 1: 3, expected 2"
    assert evidence_of([1, [2, 3]], [1, [2, 4]]) == "at index [1][1]: 4, expected 3"
    deep = [[1, [2, 3]], 4]
    assert evidence_of(deep, [[1, [2, 0]], 4]) == "at index [0][1][1]: 0, expected 3"


UNUSUAL = {
    "sparse": torch.eye(3)[0].to_sparse(),
    "meta": torch.ones(3, device="meta"),
    "complex": torch.ones(3, dtype=torch.complex64),
    "float8": torch.ones(3).to(torch.float8_e4m3fn),
    "empty": torch.ones(0),
    "a number's shape": torch.tensor(7.0),
    "long text": "x" * 10_000_000,
    "text that cannot be written": "\ud800",
    "nan": float("nan"),
    "large number": 10**4000,
    "deep": [[[[[[[[[[]]]]]]]]]],
}
EXPECTED = [torch.ones(3), np.ones(3), 1, 1.5, "x", True, None, [1.0], (1,), {"a": 1}]


@pytest.mark.parametrize("got", UNUSUAL.values(), ids=UNUSUAL)
def test_any_unexpected_output_gives_a_short_difference(got):
    for expected in EXPECTED:
        found = find_difference([expected], [got])
        assert found
        assert len(found.mistake) < 200
        assert len(found.evidence) < 10_000


def test_sizes_include_every_part_of_an_output():
    assert size_of([torch.ones(1000), np.ones(500), {"a": "x" * 50}, None]) > 8050
    assert size_of(None) == size_of(1) == 100


def test_one_wrong_element_shows_in_the_sums_of_a_large_tensor():
    whole = torch.rand(7, 257)
    sums = Sums.of(whole)
    assert equal(sums, whole.clone(), 1e-5)
    changed = whole.clone()
    changed[-1, -1] += 1e-3
    for wrong in (changed, whole[:, :-1], whole.double(), "a tensor"):
        assert not equal(sums, wrong, 1e-5)


@pytest.mark.parametrize(
    ("expected", "got", "words"),
    [
        (9e10, 8.75e9, "8,750,000,000, expected 90,000,000,000"),
        (1.0, 1 / 3, "0.333333, expected 1"),
        ((1.5, 2), (2**20 / 3, 2), "349,525 and 2, expected 1.5 and 2"),
        ([1, 2], [1, 2, 3], "length 3, expected 2"),
        (
            Sums.of(torch.ones(128)),
            torch.arange(128.0),
            "sum of 64 elements starting at 0 is 2016, exp",
        ),
    ],
)
def test_numbers_are_easy_to_read(expected, got, words):
    assert words in evidence_of(expected, got)
