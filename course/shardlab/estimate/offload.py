"""Bytes that offloading moves between device, host and NVMe in a step, and the time of the step.

ZeRO-Offload: Ren et al., "ZeRO-Offload: Democratizing Billion-Scale Model Training", arXiv
2101.06840: forward and backward on the device, the update on the host.  No other split that saves
as much memory moves fewer bytes: 2Ψ of 16-bit gradients to the host, 2Ψ of 16-bit parameters back
(section 3).  Parameters on the host and NVMe: Rajbhandari et al., "ZeRO-Infinity", arXiv
2104.07857.

Placements, each offloading more than the one before:

    "device"        nothing is offloaded
    "swap"          optimizer states are stored on the host and moved to the device for the update:
                    the cost of offloading if the update stays on the device
    "zero-offload"  optimizer states are on the host, which updates them
    "parameters"    parameters are on the host too; the device gathers them in forward and again
                    in backward, each rank a shard of 1/N (ZeRO-3)
    "nvme"          parameters and optimizer states are on NVMe, gradients pass through the host
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from shardlab.estimate.memory import check_world

PLACEMENTS = ("device", "swap", "zero-offload", "parameters", "nvme")
FORWARD_FLOPS = 2  # per parameter and token: a multiply and an add
BACKWARD_FLOPS = 4  # twice forward's, for gradients of inputs and of weights
FP32_STATE_BYTES = 12  # per parameter with Adam: master, momentum, variance


@dataclass(frozen=True)
class Transfers:
    """Bytes that one rank moves in one step."""

    to_host_bytes: float = 0.0
    to_device_bytes: float = 0.0
    nvme_read_bytes: float = 0.0
    nvme_written_bytes: float = 0.0


def moved_bytes(
    parameters: float,
    placement: str = "zero-offload",
    *,
    world_size: int = 1,
    micro_batches: int = 1,
    element_bytes: float = 2,
    state_bytes: float = FP32_STATE_BYTES,
    deepspeed_stage: int | None = None,
) -> Transfers:
    """Bytes that each rank moves each way in one optimizer step, for Ψ parameters on N ranks.

    Each rank moves its own 1/N, as sharded by ZeRO-2 and ZeRO-3; ``traffic`` covers what ranks send
    each other.  element_bytes: of a parameter or a gradient on the device.  micro_batches:
    gradients move to the host after each backward and are accumulated there; offloaded parameters
    move to the device for each forward and backward.  state_bytes: bytes per parameter that the
    update also reads and writes.  deepspeed_stage: gradients move as in DeepSpeed 0.19.8 at stage 2
    or 3, not as in the paper, for placement "zero-offload" (`_deepspeed_gradients`).

    Raises ValueError for invalid arguments.
    """
    check_world(parameters, world_size)
    if placement not in PLACEMENTS:
        raise ValueError(f"placement={placement!r}: expected one of {', '.join(PLACEMENTS)}")
    if micro_batches < 1 or micro_batches != int(micro_batches):
        raise ValueError(f"micro_batches={micro_batches}: expected a whole number, 1 or more")
    if min(element_bytes, state_bytes) < 0:
        raise ValueError("element_bytes and state_bytes must not be negative")
    if deepspeed_stage not in (None, 2, 3) or (deepspeed_stage and placement != "zero-offload"):
        raise ValueError("deepspeed_stage: expected 2 or 3, with placement='zero-offload'")
    own = element_bytes * parameters / world_size
    states = state_bytes * parameters / world_size
    if placement == "device":
        return Transfers()
    if placement == "swap":
        return Transfers(to_host_bytes=states, to_device_bytes=states)
    if placement == "zero-offload":
        if deepspeed_stage is None:
            return Transfers(to_host_bytes=micro_batches * own, to_device_bytes=own)
        down, up = _deepspeed_gradients(deepspeed_stage, micro_batches)
        widened = 4 * parameters / world_size
        return Transfers(to_host_bytes=down * own + widened, to_device_bytes=up * own + own)
    fetched = 2 * micro_batches * own
    if placement == "parameters":
        return Transfers(to_host_bytes=micro_batches * own, to_device_bytes=fetched)
    return Transfers(
        to_host_bytes=micro_batches * own,
        to_device_bytes=fetched,
        nvme_read_bytes=fetched + states,
        nvme_written_bytes=states + own,
    )


def _deepspeed_gradients(stage: int, micro_batches: int) -> tuple[int, int]:
    """How often a gradient goes down and up before it goes down once more, in fp32, for the update.

    The host only stores the sum: for each micro-batch it goes up to be added to and down again
    (`async_accumulate_grad_in_cpu_via_gpu` in stage_1_and_2.py, `partition_grads` in stage3.py).
    Stage 2 skips this for a single micro-batch; stage 3 never does, and also takes up the first.
    """
    if stage == 3:
        return micro_batches, micro_batches
    return (micro_batches, micro_batches - 1) if micro_batches > 1 else (0, 0)


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step, of its three sequential parts, and of the pieces of each part.

    A part takes as long as its longest piece if they overlap, else the sum.  ``step_s`` is the sum
    of the parts, or less with a delayed update.
    """

    forward_s: float
    backward_s: float
    update_s: float
    step_s: float
    pieces: dict[str, dict[str, float]]  # {"forward": {"compute": s, "to_device": s, …}, …}


def step_seconds(
    parameters: float,
    placement: str = "zero-offload",
    *,
    tokens_per_step: float,
    device_flops_per_s: float,
    link_bytes_per_s: float,
    host_parameters_per_s: float,
    nvme_bytes_per_s: float | None = None,
    world_size: int = 1,
    overlap: bool = True,
    delayed_update: bool = False,
) -> StepTime:
    """A model of one step's time with 16-bit parameters, Adam and one micro-batch.

    tokens_per_step      of all ranks together; each rank computes 6Ψ FLOP for each of its tokens
    device_flops_per_s   achieved by one device, not its peak
    link_bytes_per_s     between one device and the host, each way; every device has its own link
    host_parameters_per_s  updated by the host on all its cores, shared by the ranks
    nvme_bytes_per_s     reads plus writes, shared by the ranks; for placement "nvme"
    overlap              gradients move during backward, parameters return while the host is still
                         updating others (arXiv 2101.06840, section 4.1), states stream from NVMe
                         during the update (arXiv 2104.07857, section 6.2); False: sequentially
    delayed_update       the host applies one step's gradients while the device computes the next
                         step with parameters one step old (arXiv 2101.06840, section 5.2); for
                         "zero-offload"

    The model neglects latency, traffic between ranks, activations, and the update on the device
    (placements "device" and "swap"), which is short compared with a step.  All ranks are on one
    host.  The result is a lower bound that a good implementation can approach.

    Raises ValueError for invalid arguments.
    """
    moved = moved_bytes(parameters, placement, world_size=world_size)
    rates = {
        "tokens_per_step": tokens_per_step,
        "device_flops_per_s": device_flops_per_s,
        "link_bytes_per_s": link_bytes_per_s,
        "host_parameters_per_s": host_parameters_per_s,
    }
    if placement == "nvme":
        if nvme_bytes_per_s is None:
            raise ValueError("placement='nvme' needs nvme_bytes_per_s")
        rates["nvme_bytes_per_s"] = nvme_bytes_per_s
    for name, rate in rates.items():
        if not rate > 0:
            raise ValueError(f"{name}={rate}: must be above 0")
    if delayed_update and placement != "zero-offload":
        raise ValueError("delayed_update needs placement='zero-offload'")

    flop_s = parameters * tokens_per_step / world_size / device_flops_per_s
    forward = {"compute": FORWARD_FLOPS * flop_s}
    backward = {"compute": BACKWARD_FLOPS * flop_s}
    update: dict[str, float] = {}
    to_host_s = moved.to_host_bytes / link_bytes_per_s
    to_device_s = moved.to_device_bytes / link_bytes_per_s
    if placement == "swap":
        update = {"to_device": to_device_s, "to_host": to_host_s}
    elif placement != "device":
        backward["to_host"] = to_host_s
        update["host_update"] = parameters / host_parameters_per_s
        if placement == "zero-offload":
            update["to_device"] = to_device_s
        else:
            forward["to_device"] = backward["to_device"] = to_device_s / 2
    if placement == "nvme":
        assert nvme_bytes_per_s is not None  # checked above
        fetched = moved.to_device_bytes
        rest = moved.nvme_read_bytes - fetched + moved.nvme_written_bytes
        shared_bytes_per_s = nvme_bytes_per_s / world_size
        forward["nvme"] = backward["nvme"] = fetched / 2 / shared_bytes_per_s
        update["nvme"] = rest / shared_bytes_per_s

    combine = _longest if overlap else math.fsum
    forward_s, backward_s, update_s = (
        combine(part.values()) for part in (forward, backward, update)
    )
    compute_s = forward_s + backward_s
    step_s = max(compute_s, update_s) if delayed_update else compute_s + update_s
    pieces = {"forward": forward, "backward": backward, "update": update}
    return StepTime(forward_s, backward_s, update_s, step_s, pieces)


def _longest(seconds: Iterable[float]) -> float:
    return max(seconds, default=0.0)
