"""The model behind the offload picture: each placement's step time, bytes and busy times.

``offload_model.js`` computes the same; a test compares them on random settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardlab.estimate.memory import model_states
from shardlab.estimate.offload import PLACEMENTS, step_seconds

# The order of the pieces of a part when nothing overlaps.
ORDER = {
    "forward": ("nvme", "to_device", "compute"),
    "backward": ("nvme", "to_device", "compute", "to_host"),
    "update": ("nvme", "host_update", "to_device", "to_host"),
}
ROWS = ("compute", "to_host", "host_update", "to_device", "nvme")  # of the picture


@dataclass(frozen=True)
class TimeBar:
    part: str  # of the step: "forward", "backward", "update"
    piece: str  # what is busy: one of ROWS
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Outcome:
    """One placement with some settings. Bytes are of model states, per rank."""

    step_s: float
    compute_s: float  # how much of the step the device computes
    device_bytes: float
    host_bytes: float
    nvme_bytes: float
    parts: dict[str, tuple[float, float]]  # "forward", "backward", "update": start and end
    bars: tuple[TimeBar, ...]


def outcome(settings: Mapping[str, Any], placement: str) -> Outcome:
    """settings: the arguments of `shardlab.widgets.offload_times.offload_times`.

    Raises ValueError for impossible settings.
    """
    delayed = settings["delayed_update"] and placement == "zero-offload"
    time = step_seconds(
        settings["parameters"],
        placement,
        tokens_per_step=settings["tokens_per_step"],
        device_flops_per_s=settings["device_flops_per_s"],
        link_bytes_per_s=settings["link_bytes_per_s"],
        host_parameters_per_s=settings["host_parameters_per_s"],
        nvme_bytes_per_s=settings["nvme_bytes_per_s"],
        world_size=settings["world_size"],
        overlap=settings["overlap"],
        delayed_update=delayed,
    )
    computed_s = time.forward_s + time.backward_s
    parts = {
        "forward": (0.0, time.forward_s),
        "backward": (time.forward_s, computed_s),
        # An update delayed by one step runs while the device computes the next.
        "update": (0.0, time.update_s) if delayed else (computed_s, computed_s + time.update_s),
    }
    bars: list[TimeBar] = []
    for part, pieces in time.pieces.items():
        start_s, end_s = parts[part]
        at_s = start_s
        for piece in ORDER[part]:
            if not pieces.get(piece):
                continue
            begin_s = at_s
            if settings["overlap"]:
                last = _comes_last(placement, part, piece)
                begin_s = end_s - pieces[piece] if last else start_s
            bars.append(TimeBar(part, piece, begin_s, begin_s + pieces[piece]))
            at_s += pieces[piece]
    device_bytes, host_bytes, nvme_bytes = held_bytes(
        settings["parameters"], placement, settings["world_size"], settings["layers"]
    )
    return Outcome(
        step_s=time.step_s,
        compute_s=sum(time.pieces[part]["compute"] for part in ("forward", "backward")),
        device_bytes=device_bytes,
        host_bytes=host_bytes,
        nvme_bytes=nvme_bytes,
        parts=parts,
        bars=tuple(bars),
    )


def outcomes(settings: Mapping[str, Any]) -> dict[str, Outcome]:
    return {placement: outcome(settings, placement) for placement in PLACEMENTS}


def _comes_last(placement: str, part: str, piece: str) -> bool:
    """Whether a piece waits for the rest of its part, and so is drawn at the part's end."""
    return piece == "to_host" or (part == "update" and piece == "to_device" and placement != "swap")


def held_bytes(
    parameters: float, placement: str, world_size: int, layers: int
) -> tuple[float, float, float]:
    """Bytes of one rank's model states on its device, on the host and on NVMe.

    16-bit training with Adam; parameters are replicated on each device (ZeRO-2), or sharded and
    gathered one layer at a time if they are offloaded (ZeRO-3).  With "swap", states pass through
    the device piece by piece, so they do not count there.
    """
    if placement in ("device", "swap"):
        device = model_states(parameters, stage=2, world_size=world_size).device
        swapped = device["optimizer"] if placement == "swap" else 0.0
        return sum(device.values()) - swapped, swapped, 0.0
    offloads_parameters = placement != "zero-offload"
    states = model_states(
        parameters,
        stage=3 if offloads_parameters else 2,
        world_size=world_size,
        offload_optimizer=True,
        offload_parameters=offloads_parameters,
        largest_layer=parameters / layers if offloads_parameters else 0,
    )
    on_nvme = 0.0
    if placement == "nvme":
        on_nvme = states.host["parameters"] + states.host["optimizer"]
    return states.device_bytes, states.host_bytes - on_nvme, on_nvme
