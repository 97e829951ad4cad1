"""The pipeline schedules: each device's actions over time, with bubble and memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from shardlab.display.palette import MEASURED, WAIT
from shardlab.simulate.pipeline import (
    Costs,
    PipelineTimeline,
    Schedule,
    gpipe,
    interleaved_one_f_one_b,
    naive,
    one_f_one_b,
    simulate,
    zb_h1,
    zb_v,
)
from shardlab.widgets.picture import Adjustable, module
from shardlab.widgets.pipeline_panels import (
    IN_FLIGHT,
    LEFT,
    MAX_CHUNKS,
    PEAK_LEFT,
    PEAK_RIGHT,
    RIGHT,
    WIDTH,
    Panel,
    colors,
    format_percent,
    picture,
)
from shardlab.widgets.scene import to_svg

NAMES = {
    "naive": "naive",
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "interleaved 1F1B",
    "zb-h1": "ZB-H1",
    "zb-v": "ZB-V",
}
SMALL_PRINT = (
    "Simulated: each action starts as soon as its inputs and its device are ready. Costs are for a "
    "device's whole share of the model; with v chunks an action takes 1/v of them, and later "
    "chunks are paler. In flight: micro-batches whose activations a device holds; a chunk counts "
    "as 1/v."
)
COSTS = ("forward", "backward_input", "backward_weight", "send")
Slots = list[list[list[Any]]]  # by device: [kind, stage, micro-batch, start, end]


class PipelineSchedule(Adjustable):
    """Made by `pipeline_schedule`; ``settings`` may be read and set."""

    _esm: ClassVar[str] = module(
        "player.js",
        "pipeline_model.js",
        "pipeline_panels.js",
        "pipeline_words.js",
        "pipeline_sliders.js",
        "pipeline_selection.js",
        "pipeline_schedule.js",
    )

    def __init__(
        self,
        settings: dict[str, Any],
        custom: Mapping[str, Schedule],
        measured: Mapping[str, Slots],
        unit_s: float | None,
    ) -> None:
        self._custom, self._measured, self._unit_s = custom, measured, unit_s
        scene = {
            "width": WIDTH,
            "left": LEFT,
            "right": RIGHT,
            "peak_left": PEAK_LEFT,
            "peak_right": PEAK_RIGHT,
            "names": NAMES | {name: name for name in custom},
            "order": [*NAMES, *custom],  # a saved notebook sorts dictionary keys
            "custom": {name: [list(map(list, each)) for each in custom[name]] for name in custom},
            "measured": dict(measured),
            "given": settings,  # of the run, if there is one
            "unit_s": unit_s,
            "colors": colors(),
            "roles": {"wait": WAIT, "measured": MEASURED, "in_flight": IN_FLIGHT},
            "max": {"p": max(8, settings["p"]), "m": max(32, settings["m"]), "v": MAX_CHUNKS},
            "costs": _cost_values(settings),
            "small": SMALL_PRINT,
        }
        super().__init__(scene=scene, settings=settings)

    def check(self, settings: dict[str, Any]) -> None:
        check_settings(settings, self._custom)

    def panels(self) -> list[Panel]:
        """The panels shown, from top to bottom."""
        shown = []
        for name in self.settings["shown"]:
            timeline = timeline_of(name, self.settings, self._custom)
            title = self.scene["names"][name]
            if timeline is None:
                shown.append(Panel(title, None, (), 1))
                continue
            slots = tuple(
                tuple((*slot.action, slot.start, slot.end) for slot in device_slots)
                for device_slots in timeline.slots
            )
            v = round(len(timeline.device_of) / len(slots))
            shown.append(Panel(title, slots, timeline.peak_in_flight, max(1, v)))
            ran = self._measured.get(name)
            if ran and matches(ran, slots):
                unit = self._unit_s or 1.0
                scaled = tuple(
                    tuple((*slot[:3], slot[3] / unit, slot[4] / unit) for slot in device_slots)
                    for device_slots in ran
                )
                shown.append(Panel(f"{title}, measured", scaled, timeline.peak_in_flight, v, True))
        return shown

    def static_svg(self) -> str:
        marks, height = picture(self.panels(), self._unit_s)
        settings = self.settings
        subtitle = f"p = {settings['p']}, m = {settings['m']}, v = {settings['v']}"
        return to_svg(
            marks, WIDTH, height, title="Pipeline schedules", subtitle=subtitle, footer=SMALL_PRINT
        )

    def summary(self) -> str:
        settings = self.settings
        bubbles = ", ".join(
            f"{panel.title} {format_percent(panel.over_ideal)}"
            for panel in self.panels()
            if panel.slots
        )
        return (
            f"{settings['p']} devices, {settings['m']} micro-batches, "
            f"bubble over ideal time: {bubbles or 'no schedule'}"
        )


def pipeline_schedule(
    p: int = 4,
    m: int = 8,
    v: int = 2,
    schedules: Sequence[str] | Mapping[str, Sequence[Iterable[Any]]] = ("gpipe", "1f1b", "zb-h1"),
    costs: Costs | None = None,
    *,
    measured: Mapping[str, Sequence[Any]] | None = None,
    unit_s: float | None = None,
) -> PipelineSchedule:
    """Draw pipeline schedules for p devices, m micro-batches and v chunks, with a slider for each.

    schedules  names: "naive", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"; or your own,
               {name: schedule}, which only the cost sliders change
    costs      of a device's whole share of the model, one number for all stages
    measured   {name: what `shardlab.pipeline.run_schedule` returned on each rank, or its slots}:
               drawn below the simulation of the same schedule, while the settings match the run
    unit_s     seconds per unit of the costs; without it, times have no unit

    Raises ValueError for impossible settings, IllegalSchedule (a ValueError) for illegal schedules.
    """
    custom: dict[str, Schedule] = {}
    if isinstance(schedules, Mapping):
        custom = {
            name: [list(map(_as_tuple, each)) for each in rows] for name, rows in schedules.items()
        }
        if clash := set(custom) & set(NAMES):
            raise ValueError(f"{min(clash)!r} is the name of a built-in schedule")
        for schedule in custom.values():
            simulate(schedule)
    costs = costs or Costs()
    settings: dict[str, Any] = {"p": p, "m": m, "v": v, "shown": list(schedules)}
    for name in COSTS:
        settings[name] = getattr(costs, name)
        if not isinstance(settings[name], int | float):
            raise ValueError(f"{name}: pass one number for all stages (only simulate takes lists)")
    check_settings(settings, custom)
    if unit_s is not None and not unit_s > 0:
        raise ValueError(f"unit_s={unit_s}: must be above 0")
    slots = {name: slots_of(ran) for name, ran in (measured or {}).items()}
    if unknown := set(slots) - set(NAMES) - set(custom):
        raise ValueError(
            f"measured[{min(unknown)!r}]: must be one of {', '.join((*NAMES, *custom))}"
        )
    return PipelineSchedule(settings, custom, slots, unit_s)


def check_settings(settings: Mapping[str, Any], custom: Mapping[str, Schedule]) -> None:
    """Raises ValueError for impossible settings."""
    for name in ("p", "m", "v"):
        value = settings[name]
        if isinstance(value, bool) or value != int(value) or value < 1:
            raise ValueError(f"{name}={value}: must be a whole number, 1 or more")
    if settings["v"] > MAX_CHUNKS:
        raise ValueError(f"v={settings['v']}: at most {MAX_CHUNKS} chunks have a color")
    for name in settings["shown"]:
        if name not in NAMES and name not in custom:
            raise ValueError(f"schedule {name!r}: must be one of {', '.join((*NAMES, *custom))}")
    for name in COSTS:
        if not settings[name] >= 0 or (name != "send" and settings[name] == 0):
            minimum = "0 or more" if name == "send" else "above 0"
            raise ValueError(f"{name}={settings[name]}: must be {minimum}")


def schedule_of(
    name: str, settings: Mapping[str, Any], custom: Mapping[str, Schedule]
) -> Schedule | None:
    """The schedule; None if m does not divide into the rounds of interleaved 1F1B."""
    p, m, v = (int(settings[key]) for key in ("p", "m", "v"))
    if name in custom:
        return custom[name]
    if name == "interleaved":
        return interleaved_one_f_one_b(p, m, v) if v == 1 or m % max(1, m // p) == 0 else None
    makers = {"naive": naive, "gpipe": gpipe, "1f1b": one_f_one_b, "zb-h1": zb_h1, "zb-v": zb_v}
    return makers[name](p, m)


def timeline_of(
    name: str, settings: Mapping[str, Any], custom: Mapping[str, Schedule]
) -> PipelineTimeline | None:
    schedule = schedule_of(name, settings, custom)
    if schedule is None:
        return None
    stages = max(action[1] for actions in schedule for action in actions) + 1
    costs = Costs(*(settings[cost] for cost in COSTS))
    return simulate(schedule, costs.in_chunks(max(1, round(stages / len(schedule)))))


def slots_of(ran: Sequence[Any]) -> Slots:
    """What run_schedule returned on each rank, as slots by rank, timed from the first start."""
    by_rank = [
        [[*slot[0], float(slot[1]), float(slot[2])] for slot in getattr(each, "slots", each)]
        for each in ran
    ]
    if not any(by_rank):
        raise ValueError("measured: nothing ran")
    first_s = min(slots[0][3] for slots in by_rank if slots)
    return [
        [[*slot[:3], slot[3] - first_s, slot[4] - first_s] for slot in each] for each in by_rank
    ]


def matches(ran: Slots, slots: Sequence[Sequence[Sequence[Any]]]) -> bool:
    """Whether each device ran the actions of this schedule, in its order."""
    ran_actions, expected = (
        [[tuple(slot[:3]) for slot in device_slots] for device_slots in each]
        for each in (ran, slots)
    )
    return ran_actions == expected


def _as_tuple(action: Any) -> Any:
    return tuple(action) if isinstance(action, list | tuple) else action


def _cost_values(settings: Mapping[str, Any]) -> dict[str, list[float]]:
    """The values of each cost slider: round ones, and the one that was given."""
    scale = float(settings["forward"])
    whole = [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0]
    parts = [0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0]
    values = {name: [scale * each for each in whole] for name in COSTS} | {
        "send": [scale * each for each in parts]
    }
    return {name: sorted({*values[name], float(settings[name])}) for name in COSTS}
