"""The unit life: which unit of FSDP is whole on which rank, with the live bytes below."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar

from shardlab.display.palette import MEASURED, MEMORY, PREDICTED, ink_on
from shardlab.run import Run
from shardlab.simulate.fsdp import CATEGORIES, StepSettings, UnitTimeline, simulate_step
from shardlab.widgets.picture import Adjustable, module
from shardlab.widgets.scene import as_json, to_svg
from shardlab.widgets.unit_life_log import RecordedStep, read_step
from shardlab.widgets.unit_life_panels import (
    AXIS_HEIGHT,
    BELOW,
    CURVE,
    GAP,
    HEAD,
    LANE,
    LEFT,
    LEGEND_HEIGHT,
    LOOKS,
    MAX_LANES,
    RIGHT,
    WIDTH,
    Layout,
    Panel,
    legend,
    messages_text,
)
from shardlab.widgets.units import format_bytes, format_seconds

SMALL_PRINT = (
    "Live bytes exclude activations and the optimizer. Simulated: equal units, with the sliders' "
    "times."
)
MEASURED_PRINT = (
    " Measured: recorded on real ranks; a row has one lane per rank, rank 0 at the top. The "
    "simulation uses the recorded sizes and mean times, but not the gaps between them: compare "
    "order and bytes."
)
Slider = tuple[str, str, list[float], str]  # setting, label, values, unit


class UnitLife(Adjustable):
    """Made by `unit_life`; ``settings`` may be read and set.

    ``timeline`` is the simulated step for these settings, ``measured`` the recorded ones by rank.
    """

    _esm: ClassVar[str] = module("unit_life_model.js", "unit_life_panels.js", "unit_life.js")

    def __init__(self, settings: StepSettings, recorded: RecordedStep | None, rank: int) -> None:
        self.measured = recorded.timelines if recorded else ()
        chosen = asdict(settings) | {"rank": rank}
        self._small = SMALL_PRINT + MEASURED_PRINT * bool(recorded)
        scene = {
            "width": WIDTH,
            "left": LEFT,
            "right": RIGHT,
            "legend_height": LEGEND_HEIGHT,
            "head": HEAD,
            "gap": GAP,
            "curve": CURVE,
            "below": BELOW,
            "axis_height": AXIS_HEIGHT,
            "max_lanes": MAX_LANES,
            "lane": LANE,
            "legend": as_json(legend()),
            "looks": {
                kind: [fill, opacity, hatched, ink_on(fill)]
                for kind, (fill, opacity, hatched) in LOOKS.items()
            },
            "kinds": list(LOOKS),  # a saved notebook sorts dictionary keys
            "colors": {name: MEMORY[name] for name in CATEGORIES},
            "roles": {"predicted": PREDICTED, "measured": MEASURED},
            "measured": [_for_browser(timeline) for timeline in self.measured],
            "sliders": [list(slider) for slider in _sliders(chosen)],
            "small": self._small,
        }
        super().__init__(scene=scene, settings=chosen)

    def check(self, settings: dict[str, Any]) -> None:
        _step_settings(settings)
        ranks = max(1, len(self.measured))
        if settings["rank"] not in range(ranks):
            raise ValueError(f"rank={settings['rank']}: must be from 0 to {ranks - 1}")

    @property
    def timeline(self) -> UnitTimeline:
        return simulate_step(_step_settings(self.settings))

    def panels(self) -> list[Panel]:
        simulated = self.timeline
        panels = [Panel("Simulated", simulated, (simulated,))]
        if self.measured:
            rank = self.settings["rank"]
            chosen = self.measured[rank]
            lanes = self.measured if len(self.measured) <= MAX_LANES else (chosen,)
            panels.append(Panel(f"Measured, rank {rank}", chosen, tuple(lanes), True))
        return panels

    def static_svg(self) -> str:
        layout = Layout(self.panels(), self.settings["parameter_bytes"])
        return to_svg(
            layout.marks(),
            WIDTH,
            layout.height,
            title="The life of FSDP units",
            subtitle=self._sizes(),
            footer=self._small,
        )

    def _sizes(self) -> str:
        settings = self.settings
        units, ranks = settings["units"], settings["world_size"]
        return (
            f"{units} unit{'s' * (units != 1)} and the root, {ranks} ranks, "
            f"{format_bytes(settings['parameter_bytes'])} of parameters"
        )

    def summary(self) -> str:
        each = [
            f"{panel.title}: peak {format_bytes(panel.timeline.peak_bytes)}, "
            f"{messages_text(panel.timeline)}, {format_seconds(panel.timeline.step_s)}"
            for panel in self.panels()
        ]
        return f"{self._sizes()}. {'; '.join(each)}"


def unit_life(
    run: Run | None = None, *, step: int = -1, rank: int = 0, **settings: Any
) -> UnitLife:
    """Draw which unit of FSDP is whole when, and the live bytes, for one training step.

    run: of a model with `fully_shard`, launched with ``memory=True``: drawn below a simulation that
        has its sizes, its prefetching and its mean times.
    step: the pass of forward and backward to draw, counted from 0; −1 is the last.
    rank: whose live bytes are drawn.
    settings: of `shardlab.simulate.fsdp.StepSettings`: ``units``, ``world_size``, …, and
        ``prefetch`` for both forward and backward.

    The defaults are round numbers, not a specific machine.  Raises ValueError for impossible
    settings, or a run without units.
    """
    if "prefetch" in settings:
        prefetch = settings.pop("prefetch")
        settings = {"forward_prefetch": prefetch, "backward_prefetch": prefetch} | settings
    recorded = read_step(run, step) if run is not None else None
    given = asdict(recorded.settings() if recorded else StepSettings())
    if unknown := set(settings) - set(given):
        raise ValueError(f"{min(unknown)!r} is not a setting: use {', '.join(given)}")
    ranks = len(recorded.timelines) if recorded else 1
    if rank not in range(ranks):
        raise ValueError(f"rank={rank}: must be from 0 to {ranks - 1}")
    return UnitLife(StepSettings(**given | settings), recorded, rank)


def _step_settings(settings: Mapping[str, Any]) -> StepSettings:
    return StepSettings(**{name: value for name, value in settings.items() if name != "rank"})


def _for_browser(timeline: UnitTimeline) -> dict[str, Any]:
    return {
        "names": list(timeline.names),
        "spans": [[row, kind, round(a, 9), round(b, 9)] for row, kind, a, b in timeline.spans],
        "times": [round(at_s, 9) for at_s in timeline.times_s],
        "live": {name: [round(count) for count in timeline.live[name]] for name in CATEGORIES},
        "step": round(timeline.step_s, 9),
    }


def _sliders(settings: Mapping[str, Any]) -> list[Slider]:
    """Each slider has a list of round values, plus the one that was given."""
    few = [float(count) for count in range(5)]
    sliders: list[Slider] = [
        ("units", "Units", [float(count) for count in range(1, 17)], "count"),
        ("world_size", "Ranks N", [2.0**power for power in range(1, 11)], "count"),
        ("forward_prefetch", "Prefetch, forward", few, "count"),
        ("backward_prefetch", "Prefetch, backward", few, "count"),
        ("forward_s", "Compute, forward", _around(settings["forward_s"]), "s"),
        ("link_bytes_per_s", "Link", _around(settings["link_bytes_per_s"]), "B/s"),
        ("message_s", "Per message", [0.0, *_around(settings["message_s"] or 1e-4)], "s"),
    ]
    return [
        (name, label, sorted({*values, float(settings[name])}), unit)
        for name, label, values, unit in sliders
    ]


def _around(value: float) -> list[float]:
    """Factors of 2 below and above."""
    return [value * 2.0**power for power in range(-5, 6)]
