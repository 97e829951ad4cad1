"""What offloading moves between device, host and NVMe in a step, and how long the step takes.

ZeRO-Offload: Ren et al., "ZeRO-Offload: Democratizing Billion-Scale Model Training", arXiv
2101.06840: forward and backward on the device, the update on the host.  Of all splits that save as
much, none moves fewer bytes: 2Ψ of 16-bit gradients to the host, 2Ψ of 16-bit parameters back
(section 3).  Parameters on the host and NVMe: Rajbhandari et al., "ZeRO-Infinity", arXiv
2104.07857.

Placements, each a step further than the one before:

    "device"        nothing is offloaded
    "swap"          optimizer states wait on the host and visit the device for the update: what
                    offload costs where the update stays on the device
    "zero-offload"  optimizer states live on the host, which updates them there
    "parameters"    parameters live on the host too; the device gathers them in forward and again
                    in backward, each rank a shard of 1/N (ZeRO-3)
    "nvme"          parameters and optimizer states live on NVMe, gradients pass through the host
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from shardlab.estimate.memory import check_world

PLACEMENTS = ("device", "swap", "zero-offload", "parameters", "nvme")
FORWARD_FLOPS = 2  # for each parameter and token: a multiply and an add
BACKWARD_FLOPS = 4  # twice forward's, for gradients of inputs and of weights
FP32_STATE_BYTES = 12  # of one parameter with Adam: master, momentum, variance


@dataclass(frozen=True)
class Moved:
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
) -> Moved:
    """Bytes that each rank moves each way in one optimizer step. Ψ parameters on N ranks.

    Each rank moves its own 1/N, as ZeRO-2 and ZeRO-3 shard it; what ranks then exchange with one
    another is in ``traffic``.  element_bytes: of a parameter and of a gradient on the device.
    micro_batches: gradients go to the host after each backward, where they are added up; parameters
    kept off the device come for each forward and backward.  state_bytes: what the update reads and
    writes of one parameter besides.

    Raises ValueError for what cannot be.
    """
    check_world(parameters, world_size)
    if placement not in PLACEMENTS:
        raise ValueError(f"placement={placement!r} is not known: one of {', '.join(PLACEMENTS)}")
    if micro_batches < 1 or micro_batches != int(micro_batches):
        raise ValueError(f"micro_batches={micro_batches}: a whole number, 1 or more")
    if min(element_bytes, state_bytes) < 0:
        raise ValueError("element_bytes and state_bytes are not negative")
    own = element_bytes * parameters / world_size
    states = state_bytes * parameters / world_size
    if placement == "device":
        return Moved()
    if placement == "swap":
        return Moved(to_host_bytes=states, to_device_bytes=states)
    if placement == "zero-offload":
        return Moved(to_host_bytes=micro_batches * own, to_device_bytes=own)
    fetched = 2 * micro_batches * own
    if placement == "parameters":
        return Moved(to_host_bytes=micro_batches * own, to_device_bytes=fetched)
    return Moved(
        to_host_bytes=micro_batches * own,
        to_device_bytes=fetched,
        nvme_read_bytes=fetched + states,
        nvme_written_bytes=states + own,
    )


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step: its three parts, one after the other, and what each is made of.

    A part takes as long as its longest piece where they overlap, else as their sum.  ``step_s`` is
    less than the sum of the parts with a delayed update alone.
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
    device_flops_per_s   of one device, as reached and not as advertised
    link_bytes_per_s     between one device and the host, each way; every device has its own link
    host_parameters_per_s  that the host updates, all its cores: the ranks share it
    nvme_bytes_per_s     read and written together, shared too; for placement "nvme"
    overlap              gradients leave during backward, parameters come back while the host still
                         updates others (arXiv 2101.06840, section 4.1), states stream from NVMe
                         during the update (arXiv 2104.07857, section 6.2); False: one after another
    delayed_update       the host updates with one step's gradients while the device computes the
                         next with parameters one step old (arXiv 2101.06840, section 5.2): for
                         "zero-offload"

    What it leaves out: latency, what ranks send one another, activations, and the update on the
    device (placements "device" and "swap"), which is short beside a step.  All ranks sit in one
    host.  So it is a floor that a good implementation comes near to.

    Raises ValueError for what cannot be.
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
            raise ValueError(f"{name}={rate}: above 0")
    if delayed_update and placement != "zero-offload":
        raise ValueError("delayed_update goes with placement='zero-offload'")

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

    lasts = _longest if overlap else math.fsum
    forward_s, backward_s, update_s = (lasts(part.values()) for part in (forward, backward, update))
    computed_s = forward_s + backward_s
    step_s = max(computed_s, update_s) if delayed_update else computed_s + update_s
    pieces = {"forward": forward, "backward": backward, "update": update}
    return StepTime(forward_s, backward_s, update_s, step_s, pieces)


def _longest(seconds: Iterable[float]) -> float:
    return max(seconds, default=0.0)
