"""Notices that NaN is converted to an integer, which is different on different CPUs."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CONVERSIONS = {"to", "type", "type_as", "copy_", "byte", "char", "short", "int", "long"}


class IntegerNan(TorchFunctionMode):
    """``found``: whether it happened inside the with block.

    Not a TorchDispatchMode, which would also see ``codes[0] = nan``: it imports torch._dynamo.
    """

    found = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in CONVERSIONS and isinstance(result, torch.Tensor):
            is_integer = not (result.is_floating_point() or result.is_complex())
            self.found |= is_integer and any(
                bool(each.isnan().any()) for each in args if isinstance(each, torch.Tensor)
            )
        return result
