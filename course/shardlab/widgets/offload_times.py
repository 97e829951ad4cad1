"""The offload times: when each resource is busy in a step; each placement's time and memory."""

from __future__ import annotations

from typing import Any, ClassVar

from shardlab.display.palette import ERROR, MEMORY, OK, PHASES, WAIT, ink_on
from shardlab.estimate.offload import PLACEMENTS
from shardlab.widgets.offload_model import ROWS, Outcome, TimeBar, outcomes
from shardlab.widgets.picture import Adjustable, module
from shardlab.widgets.scene import Mark, Rect, Text, as_json, line, text_width, to_svg
from shardlab.widgets.time_axis import tick_labels, time_ticks
from shardlab.widgets.units import format_count, format_seconds, format_si

WIDTH, HEIGHT = 800.0, 404.0
LEFT, RIGHT = 132.0, 784.0
ROW = 26.0
STEP_TOP = 64.0  # the step of one placement: a row per resource
ALL_TOP = 266.0  # all placements: a row each
BARS_RIGHT = 446.0  # of their bars; numbers are to the right
LONGEST_BAR = 3.0  # times the longer of no offload and the chosen one; longer bars are cut off

NAMES = {
    "device": "no offload",
    "swap": "states swapped",
    "zero-offload": "optimizer on host",
    "parameters": "all on host",
    "nvme": "on NVMe",
}
ROW_NAMES = {
    "compute": "device compute",
    "to_host": "device → host",
    "host_update": "host update",
    "to_device": "host → device",
    "nvme": "host ⇄ NVMe",
}
COLORS = {
    "forward": PHASES["forward"],
    "backward": PHASES["backward"],
    "gradients": MEMORY["gradients"],
    "parameters": MEMORY["parameters"],
    "states": MEMORY["optimizer"],
    "Adam": PHASES["update"],
}
SMALL_PRINT = (
    "A model of 16-bit training with Adam, not a measurement. Not included: latency, traffic "
    "between ranks, activations, an update on the device. All ranks share one host. "
    "Ratios are relative to a step without offload, even if that does not fit."
)
Slider = tuple[str, str, list[float], str]  # setting, label, values, unit


class OffloadTimes(Adjustable):
    """A step's time by placement. Made by `offload_times`; ``settings`` may be read and set."""

    _esm: ClassVar[str] = module(
        "time_axis.js", "offload_model.js", "offload_marks.js", "offload_times.js"
    )

    def __init__(self, settings: dict[str, Any]) -> None:
        scene = {
            "width": WIDTH,
            "height": HEIGHT,
            "left": LEFT,
            "right": RIGHT,
            "row": ROW,
            "step_top": STEP_TOP,
            "all_top": ALL_TOP,
            "bars_right": BARS_RIGHT,
            "longest_bar": LONGEST_BAR,
            "names": NAMES,
            "rows": [[row, ROW_NAMES[row]] for row in ROWS],
            "colors": {what: [color, ink_on(color)] for what, color in COLORS.items()},
            "roles": {"wait": WAIT, "right": OK, "wrong": ERROR},
            "sliders": [list(slider) for slider in _sliders(settings)],
            "background": as_json(_background()),
            "small": SMALL_PRINT,
        }
        super().__init__(scene=scene, settings=settings)

    def check(self, settings: dict[str, Any]) -> None:
        check_settings(settings)

    def static_svg(self) -> str:
        settings, by_placement = self.settings, outcomes(self.settings)
        chosen = by_placement[settings["placement"]]
        marks = [
            *_background(),
            *step_marks(settings["placement"], chosen),
            *all_marks(settings, by_placement),
        ]
        subtitle = (
            f"{format_count(settings['parameters'])} parameters, "
            f"{format_count(settings['tokens_per_step'])} tokens, {_ranks(settings)}"
        )
        return to_svg(
            marks,
            WIDTH,
            HEIGHT,
            title="Offload: time of a step",
            subtitle=subtitle,
            footer=SMALL_PRINT,
        )

    def summary(self) -> str:
        settings, by_placement = self.settings, outcomes(self.settings)
        steps = ", ".join(
            f"{NAMES[name]} {format_seconds(each.step_s)} "
            f"({'fits' if fits(settings, each) else 'does not fit'})"
            for name, each in by_placement.items()
        )
        return f"{format_count(settings['parameters'])} parameters on {_ranks(settings)}: {steps}"


def offload_times(
    parameters: float = 10e9,
    tokens_per_step: float = 8192,
    device_flops_per_s: float = 50e12,
    link_bytes_per_s: float = 16e9,
    host_parameters_per_s: float = 4e9,
    world_size: int = 1,
    placement: str = "zero-offload",
    *,
    nvme_bytes_per_s: float = 3e9,
    overlap: bool = True,
    delayed_update: bool = False,
    capacity_bytes: float = 32e9,
    layers: int = 32,
) -> OffloadTimes:
    """Draw how long a training step takes with its states on the device, the host or NVMe.

    Times are from `shardlab.estimate.offload.step_seconds`, which documents the first arguments;
    bytes are from `shardlab.estimate.memory.model_states`.

    placement: the one drawn in detail: "device", "swap", "zero-offload", "parameters", "nvme".
    capacity_bytes: of one device, for model states only.
    layers: of equal size; if parameters are offloaded, the device gathers one at a time.

    Defaults are round numbers for one GPU with 32 GB on PCIe, not a specific machine.
    Raises ValueError for impossible settings.
    """
    settings = {
        "parameters": parameters,
        "tokens_per_step": tokens_per_step,
        "device_flops_per_s": device_flops_per_s,
        "link_bytes_per_s": link_bytes_per_s,
        "host_parameters_per_s": host_parameters_per_s,
        "nvme_bytes_per_s": nvme_bytes_per_s,
        "world_size": world_size,
        "capacity_bytes": capacity_bytes,
        "layers": layers,
        "placement": placement,
        "overlap": overlap,
        "delayed_update": delayed_update,
    }
    check_settings(settings)
    return OffloadTimes(settings)


def check_settings(settings: dict[str, Any]) -> None:
    """Raises ValueError for impossible settings."""
    if settings["placement"] not in PLACEMENTS:
        known = ", ".join(map(repr, PLACEMENTS))
        raise ValueError(f"placement={settings['placement']!r}: must be one of {known}")
    for name in ("parameters", "capacity_bytes", "layers"):
        if not settings[name] > 0:
            raise ValueError(f"{name}={settings[name]}: must be above 0")
    if settings["layers"] < 1:
        raise ValueError(f"layers={settings['layers']}: must be 1 or more")
    outcomes(settings)


def fits(settings: dict[str, Any], outcome: Outcome) -> bool:
    return bool(outcome.device_bytes <= settings["capacity_bytes"])


def _ranks(settings: dict[str, Any]) -> str:
    return f"{settings['world_size']} rank{'s' * (settings['world_size'] != 1)}"


def _sliders(settings: dict[str, Any]) -> list[Slider]:
    """Each slider has a list of round values, plus the one that was given."""
    twos = [float(2**power) for power in range(25)]
    capacities = [8, 11, 16, 24, 32, 40, 48, 64, 80, 96, 128, 141, 192, 288]
    sliders: list[Slider] = [
        ("parameters", "Parameters", _round_values(1e7, 1e12), "count"),
        ("tokens_per_step", "Tokens per step", twos[6:], "count"),
        ("device_flops_per_s", "Device compute", _round_values(1e11, 2e15), "FLOP/s"),
        ("link_bytes_per_s", "Link, one way", _round_values(1e9, 1e12), "B/s"),
        ("host_parameters_per_s", "Host update rate", _round_values(1e8, 1e11), "count/s"),
        ("nvme_bytes_per_s", "NVMe", _round_values(5e8, 1e11), "B/s"),
        ("world_size", "Ranks", twos[:11], "count"),
        ("capacity_bytes", "Device memory", [1e9 * size for size in capacities], "B"),
    ]
    return [
        (name, label, sorted({*values, float(settings[name])}), unit)
        for name, label, values, unit in sliders
    ]


def _round_values(smallest: float, largest: float) -> list[float]:
    factors = (1, 1.25, 1.6, 2, 2.5, 3.2, 4, 5, 6.4, 8)
    powers = range(7, 16)
    values = (float(round(factor * 10.0**power)) for power in powers for factor in factors)
    return [value for value in values if smallest <= value <= largest]


# ---- drawing; offload_times.js draws the same for other settings ----


def content_of(placement: str, bar: TimeBar) -> str:
    """What a bar computes or moves: a key of `COLORS`."""
    if bar.piece == "compute":
        return bar.part
    if bar.piece == "host_update":
        return "Adam"
    if placement == "swap" or (bar.piece == "nvme" and bar.part == "update"):
        return "states"
    return "gradients" if bar.piece == "to_host" else "parameters"


def _background() -> list[Mark]:
    """The marks that do not depend on settings: names, lines, headings."""
    marks: list[Mark] = []
    for index, row in enumerate(ROWS):
        y = STEP_TOP + index * ROW
        marks.append(Text(x=LEFT - 10, y=y + 17, text=ROW_NAMES[row], anchor="end"))
        marks.append(line(LEFT, y + ROW, RIGHT, y + ROW, opacity=0.5))
    y = ALL_TOP - 10
    marks += [
        Text(x=0, y=y, text="All placements", weight=600),
        *_legend(y),
        Text(x=BARS_RIGHT + 70, y=y, text="step", size=11, anchor="end", fill="muted"),
        Text(x=BARS_RIGHT + 126, y=y, text="ratio", size=11, anchor="end", fill="muted"),
        Text(x=BARS_RIGHT + 150, y=y, text="model states per device", size=11, fill="muted"),
    ]
    return marks


def _legend(y: float) -> list[Mark]:
    marks: list[Mark] = []
    for index, (name, fill) in enumerate(
        [("forward", COLORS["forward"]), ("backward", COLORS["backward"]), ("waiting", WAIT)]
    ):
        x = LEFT + 84 * index
        marks.append(Rect(x=x, y=y - 9, width=10, height=10, fill=fill, radius=2))
        marks.append(Text(x=x + 15, y=y, text=name, size=11, fill="muted"))
    return marks


def step_marks(placement: str, outcome: Outcome) -> list[Mark]:
    """One step of one placement: when each resource is busy."""
    bottom = STEP_TOP + len(ROWS) * ROW
    per_second = (RIGHT - LEFT) / outcome.step_s
    x = lambda at_s: LEFT + at_s * per_second  # noqa: E731
    marks: list[Mark] = [Text(x=0, y=14, text=f"One step, {NAMES[placement]}", weight=600)]
    for part, (start_s, end_s) in outcome.parts.items():
        if end_s == start_s:
            continue
        delayed = part == "update" and start_s == 0
        y = 36.0 if delayed else 52.0
        width = max(1.0, (end_s - start_s) * per_second - 2)
        marks.append(Rect(x=x(start_s), y=y + 4, width=width, height=3, fill="muted", opacity=0.6))
        label = f"{part} (of the previous step)" if delayed else part
        if width > text_width(label, 11):
            marks.append(Text(x=x(start_s), y=y, text=label, size=11, fill="muted"))
        if start_s:
            marks.append(line(x(start_s), STEP_TOP, x(start_s), bottom, opacity=0.8))
    for bar in outcome.bars:
        left, width = x(bar.start_s), max(1.0, (bar.end_s - bar.start_s) * per_second)
        top = STEP_TOP + ROWS.index(bar.piece) * ROW + 4
        content = content_of(placement, bar)
        color = COLORS[content]
        marks.append(Rect(x=left, y=top, width=width, height=ROW - 8, fill=color, radius=2))
        seconds = format_seconds(bar.end_s - bar.start_s)
        for label in (f"{content} {seconds}", seconds):
            if text_width(label, 11) < width - 8:
                ink = ink_on(color)
                marks.append(Text(x=left + 6, y=top + 13, text=label, size=11, fill=ink))
                break
    ticks = time_ticks(0, outcome.step_s, 6)
    for tick, label in zip(ticks, tick_labels(ticks, outcome.step_s), strict=True):
        marks.append(line(x(tick), bottom, x(tick), bottom + 4))
        at = min(x(tick), RIGHT - 14)
        marks.append(Text(x=at, y=bottom + 16, text=label, size=11, anchor="middle", fill="muted"))
    return marks


def all_marks(settings: dict[str, Any], by_placement: dict[str, Outcome]) -> list[Mark]:
    """A bar for each placement's step, its ratio to no offload, and whether it fits."""
    no_offload_s, chosen = by_placement["device"].step_s, settings["placement"]
    axis_s = _scale_s(by_placement, chosen)
    per_second = (BARS_RIGHT - LEFT) / axis_s
    marks: list[Mark] = []
    for index, (name, each) in enumerate(by_placement.items()):
        y = ALL_TOP + index * ROW
        if name == chosen:
            marks.append(
                Rect(x=0, y=y, width=WIDTH, height=ROW, fill="text", opacity=0.08, radius=3)
            )
        weight = 600 if name == chosen else 400
        marks.append(Text(x=LEFT - 10, y=y + 17, text=NAMES[name], anchor="end", weight=weight))
        at = LEFT
        for _, fill, seconds in spent(each):
            width = min(seconds * per_second, BARS_RIGHT - at)
            marks.append(Rect(x=at, y=y + 5, width=width, height=ROW - 10, fill=fill))
            at += width
        if each.step_s > 1.0001 * axis_s:
            marks.append(Text(x=BARS_RIGHT + 2, y=y + 17, text="»"))
        ratio = format_ratio(each.step_s / no_offload_s)
        room = fits(settings, each)
        text = f"{format_si(each.device_bytes, 'B')}: {'fits' if room else 'does not fit'}"
        marks += [
            Text(x=BARS_RIGHT + 70, y=y + 17, text=format_seconds(each.step_s), anchor="end"),
            Text(x=BARS_RIGHT + 126, y=y + 17, text=ratio, anchor="end", weight=weight),
            Rect(x=BARS_RIGHT + 150, y=y + 8, width=10, height=10, radius=5 if room else 0,
                 fill=OK if room else ERROR),
            Text(x=BARS_RIGHT + 167, y=y + 17, text=text),
        ]  # fmt: skip
    return marks


def spent(outcome: Outcome) -> list[tuple[str, str, float]]:
    """How the device spends a step: [(activity, color, seconds)]"""
    computes = [
        (bar.part, COLORS[bar.part], bar.end_s - bar.start_s)
        for bar in outcome.bars
        if bar.piece == "compute"
    ]
    return [*computes, ("waiting", WAIT, outcome.step_s - outcome.compute_s)]


def format_ratio(ratio: float) -> str:
    """Three digits: ``1.25 ×``, ``16.3 ×``, ``651 ×``."""
    return f"{ratio:.{2 if ratio < 9.995 else 1 if ratio < 99.95 else 0}f} ×"


def _scale_s(by_placement: dict[str, Outcome], chosen: str) -> float:
    """The time of a full-width bar, so that one slow placement does not hide the others."""
    near = max(by_placement["device"].step_s, by_placement[chosen].step_s)
    return min(max(each.step_s for each in by_placement.values()), LONGEST_BAR * near)
