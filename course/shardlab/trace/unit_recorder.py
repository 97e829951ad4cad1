"""Records when FSDP2 gathers, uses and frees each unit of a model.

A unit is what one call of `fully_shard` groups: its parameters are gathered and freed together.
Calls and live bytes alone do not say which of several equal units was freed, so this module wraps
the methods of FSDP2's parameter group through which every unit passes. torch has no public hook
for them; its profiler sees the same methods (torch 2.13, _fsdp_param_group.py).
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Callable
from typing import Any

MODULE = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
METHODS = {
    "unshard": "gather",  # starts the all-gather, and waits for it unless it is asynchronous
    "wait_for_unshard": "copy",  # waits, then copies from the all-gather's buffer to parameters
    "reshard": "free",
    "pre_forward": "before forward",
    "post_forward": "after forward",
    "pre_backward": "before backward",
    "post_backward": "reduce",  # frees the parameters and reduce-scatters the gradients
}
SILENT = ("gather", "copy", "free")  # recorded only if they did something
MAX_EVENTS = 20_000
Row = list[Any]  # unit, event, start, end


def record_units(rows: list[Row], exits: contextlib.ExitStack) -> bool:
    """Append a row for each of these calls until ``exits`` closes; False if FSDP2 isn't loaded."""
    group_type = getattr(sys.modules.get(MODULE), "FSDPParamGroup", None)
    if group_type is None:
        return False
    for name, event in METHODS.items():
        original = getattr(group_type, name)
        setattr(group_type, name, _recorded(original, event, rows))
        exits.callback(setattr, group_type, name, original)
    return True


def _recorded(original: Callable[..., Any], event: str, rows: list[Row]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(group: Any, *args: Any, **kwargs: Any) -> Any:
        start, before = time.monotonic(), _state(group)
        try:
            return original(group, *args, **kwargs)
        finally:
            after = _state(group)
            if len(rows) < MAX_EVENTS and (before != after or event not in SILENT):
                rows.append([group._module_fqn or "", event, start, time.monotonic()])

    return method


def _state(group: Any) -> tuple[bool, bool]:
    return group.is_unsharded, group._all_gather_result is not None
