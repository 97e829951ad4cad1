"""`with profile():` records this rank's operators with torch.profiler, on the clock of its calls.

What is kept of a trace: the outermost operators of the thread in which the block runs, without
annotations such as `Optimizer.step` and without those that start or await communication: of these,
the operators within that do not. And communication itself, which gloo names "gloo:all_reduce" in
threads of its own. With a GPU, its kernels instead, NCCL's as communication: operators of the host
then only start them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from shardlab.run import Span
from shardlab.trace import measure

if TYPE_CHECKING:
    from torch.autograd.profiler_util import FunctionEvent

CLOCK = "shardlab: clock"  # a span that begins just before time.monotonic() is read
READINGS = 5  # of both clocks: a rank may be paused in between
QUIET = ("KINETO_LOG_LEVEL", "6")  # or each rank prints "USDT: profiler_start" to its stderr
STARTS_OR_AWAITS = ("c10d::", "_c10d_functional::", "record_param_comms")


@contextlib.contextmanager
def profile() -> Iterator[None]:
    """Record the block's operators: ``run.spans``. Each rank that calls it records its own.

    Outside of a launched rank (under torchrun, say) the block just runs.
    """
    if (recorder := measure.recorder) is None:
        yield
        return
    import torch
    from torch.profiler import ProfilerActivity, record_function

    os.environ.setdefault(*QUIET)
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profiler:
        read_s = []
        for _ in range(READINGS):
            with record_function(CLOCK):
                read_s.append(time.monotonic())
        try:
            yield
        finally:
            if torch.cuda.is_available():
                torch.cuda.synchronize()  # kernels that run after the block belong to it
    recorder.spans(spans_of(profiler.events() or [], read_s))


def spans_of(events: list[FunctionEvent], read_s: list[float]) -> list[Span]:
    """The spans among a profiler's events, on the clock that was read in those named CLOCK."""
    clocks = sorted(
        (event for event in events if event.name == CLOCK), key=lambda event: event.time_range.start
    )
    offset_s = min(
        at_s - clock.time_range.start / 1e6 for at_s, clock in zip(read_s, clocks, strict=True)
    )
    kernels = [event for event in events if _is_kernel(event)]

    def span(event: FunctionEvent, kind: str) -> Span:
        start_s, end_s = event.time_range.start / 1e6, event.time_range.end / 1e6
        return Span(0, event.name, kind, offset_s + start_s, offset_s + end_s)

    if kernels:
        spans = [
            span(kernel, "communication" if "nccl" in kernel.name.lower() else "compute")
            for kernel in kernels
        ]
    else:
        roots = [event for event in events if event.cpu_parent is None]
        own = [e for e in roots if e.thread == clocks[0].thread and not e.is_async]
        spans = [span(event, "compute") for event in _operators(own)]
        spans += [span(e, "communication") for e in events if e.name.startswith("gloo:")]
    return sorted(spans, key=lambda span: span.start_s)


def _operators(events: list[FunctionEvent]) -> Iterator[FunctionEvent]:
    """The outermost ones that compute, and do nothing else: FSDP gathers parameters within an
    operator of the backward pass, and DTensor reduces within aten::linear."""
    for event in events:
        if event.name == CLOCK or _is_communication(event):
            continue
        if event.is_user_annotation or _communicates(event):
            yield from _operators(event.cpu_children)
        else:
            yield event


def _communicates(event: FunctionEvent) -> bool:
    return any(_is_communication(each) or _communicates(each) for each in event.cpu_children)


def _is_communication(event: FunctionEvent) -> bool:
    return event.name.startswith(STARTS_OR_AWAITS)


def _is_kernel(event: Any) -> bool:
    return bool(event.device_type.name == "CUDA" and not event.is_user_annotation)
