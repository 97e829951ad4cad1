"""Accelerate on reused ranks, where its global state has to be reset."""

from __future__ import annotations

from typing import Any, SupportsFloat

from torch import Tensor

EXCHANGES = ("all_reduce", "all_gather", "reduce_scatter")  # of gradients or losses


def as_number(value: Any) -> float | str:
    """``value`` as a float, or what it is instead: "a Tensor of 2"."""
    kind = f"a {type(value).__name__}"
    if isinstance(value, Tensor) and value.numel() != 1:
        return f"{kind} of {value.numel()}"
    return float(value) if isinstance(value, SupportsFloat) else kind


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
