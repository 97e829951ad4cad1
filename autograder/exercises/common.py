"""Shared by several labs: sizes, drawn tensors, linear layers, bounds ((start, stop) by rank)."""

from __future__ import annotations

import reprlib
from operator import index
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from autograder.exercise import Plain

FLOAT_BYTES = 4
# Of what an exercise sends: below, gloo's own messages take more than a budget's few percent.
BUDGET_FROM_BYTES = 2**20


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> Tensor:
    """Normally distributed, in fp32."""
    return torch.from_numpy(scale * rng.standard_normal(shape)).float()


def linear_of(weight: Tensor, bias: Tensor) -> nn.Linear:
    """Does not copy the tensors, so releasing the layer releases them."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    layer.weight, layer.bias = nn.Parameter(weight), nn.Parameter(bias)
    return layer


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
