"""NaN that becomes an integer is noticed; other integers that come from NaN are not."""

import pytest
import torch

from autograder.guest.integer_nan import IntegerNan

NAN = torch.tensor([0.0]) / 0


@pytest.mark.parametrize(
    "convert",
    [
        lambda x: x.to(torch.int8),
        lambda x: x.char(),
        lambda x: x.type(torch.uint8),
        lambda x: torch.zeros(1, dtype=torch.int8).copy_(x),
    ],
)
def test_a_conversion_of_nan_is_found(convert):
    with IntegerNan() as converted:
        convert(torch.ones(1))
    assert not converted.found
    with IntegerNan() as converted:
        convert(NAN)
    assert converted.found


@pytest.mark.parametrize("use", [lambda x: x.argmin(), lambda x: x.half(), lambda x: x.isnan()])
def test_other_uses_of_nan_are_not(use):
    with IntegerNan() as converted:
        use(NAN)
    assert not converted.found
