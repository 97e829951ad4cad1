"""Shared by several labs: bounds, which are (start, stop) for each rank, and linear layers."""

from __future__ import annotations

import reprlib
from operator import index
from typing import Any

from torch import Tensor, nn

from autograder.exercise import Plain


def as_pairs(bounds: Any) -> Plain:
    """Accept lists for tuples, and numpy's or torch's integers for Python's.

    Anything else is returned as it is, and the comparison reports it.
    """
    if isinstance(bounds, dict):  # whatever its keys are
        return {}
    if not isinstance(bounds, list | tuple):
        return bounds
    return [tuple(map(_edge, pair)) if isinstance(pair, list | tuple) else pair for pair in bounds]


def _edge(value: Any) -> int:
    """Raises TypeError for a float, even a whole one: it cannot be used in a slice."""
    if not hasattr(value, "__index__"):
        raise TypeError(f"bounds are integers, and cannot contain {reprlib.repr(value)}")
    return index(value)


def is_pairs(bounds: Any) -> bool:
    return isinstance(bounds, list) and all(
        isinstance(pair, tuple) and len(pair) == 2 and all(type(edge) is int for edge in pair)
        for pair in bounds
    )


def linear_of(weight: Tensor, bias: Tensor) -> nn.Linear:
    """Does not copy the tensors, so releasing the layer releases them."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
    return layer
