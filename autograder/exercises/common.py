"""What exercises of several labs share: bounds, (start, stop) for each rank, and linear layers."""

from __future__ import annotations

from operator import index
from typing import Any

from torch import Tensor, nn

from autograder.exercise import Plain


def as_pairs(bounds: Any) -> Plain:
    """Lists will do for tuples, and numpy's or torch's whole numbers for Python's.

    Anything else stays as it is, for the comparison to name.
    """
    if not isinstance(bounds, list | tuple):
        return bounds
    return [tuple(map(index, pair)) if isinstance(pair, list | tuple) else pair for pair in bounds]


def is_pairs(bounds: Any) -> bool:
    return isinstance(bounds, list) and all(
        isinstance(pair, tuple) and len(pair) == 2 and all(type(edge) is int for edge in pair)
        for pair in bounds
    )


def linear_of(weight: Tensor, bias: Tensor) -> nn.Linear:
    """Takes over the tensors: a drive that lets go of the layer lets go of them."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
    return layer
