"""`with measure("label"):` marks a block of a rank's code whose bytes are counted separately."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardlab.trace.recorder import Recorder

recorder: Recorder | None = None  # this rank's; None outside of launched ranks


def measure(label: str) -> contextlib.AbstractContextManager[None]:
    """Mark a block of a rank's code: ``run.traffic[label]`` has the bytes that it sent.

    `Run.step_time` and `timeline` take blocks labeled "loader" as the time in which the rank gets
    its next batch. Outside of a launched rank (under torchrun, say) this does nothing.
    """
    return contextlib.nullcontext() if recorder is None else recorder.block(label)
