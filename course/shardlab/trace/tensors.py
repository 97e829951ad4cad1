"""Finds the tensors in arguments and results."""

from __future__ import annotations

from typing import Any

import torch

_CONTAINERS = (list, tuple, dict)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in nested lists, tuples and dicts, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    found: list[torch.Tensor] = []
    if isinstance(value, _CONTAINERS):
        _collect(value, found)
    return found


def _collect(container: Any, found: list[torch.Tensor]) -> None:
    for item in container.values() if isinstance(container, dict) else container:
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif isinstance(item, _CONTAINERS):
            _collect(item, found)
