"""Shared by the exercises on Accelerate, whose global state has to be reset on reused ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, SupportsFloat

from torch import Tensor, nn

EXCHANGES = ("all_reduce", "all_gather", "reduce_scatter")  # of gradients or losses


def as_number(value: Any) -> float:
    """Raises TypeError, which a check reports with its message."""
    kind = "None: every rank returns it" if value is None else f"a {type(value).__name__}"
    if isinstance(value, Tensor) and value.numel() != 1:
        kind += f" of {value.numel()} elements"
    elif isinstance(value, SupportsFloat):
        return float(value)
    raise TypeError(f"expected one number, got {kind}")


def numbered(name: str, values: Iterable[Any]) -> dict[str, Any]:
    """{"losses[0]": …}, so that a message names a wrong value in Python's notation."""
    return {f"{name}[{i}]": value for i, value in enumerate(values)}


def with_weights(model: nn.Module, weights: Iterable[Tensor]) -> nn.Module:
    for parameter, weight in zip(model.parameters(), weights, strict=True):
        parameter.data = weight.clone()
    return model


def forget_accelerators() -> None:
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def new_accelerator(accumulation: int = 1, **loader_options: Any) -> Any:
    """``loader_options``: arguments of accelerate's DataLoaderConfiguration."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    forget_accelerators()
    return Accelerator(
        cpu=True,
        gradient_accumulation_steps=accumulation,
        dataloader_config=DataLoaderConfiguration(**loader_options),
    )
