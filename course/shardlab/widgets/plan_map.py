"""The planner's map: memory and time of all layouts of a model on a cluster, and one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from shardlab.plan.calibrate import Measured
from shardlab.plan.plans import RESERVE, Plan, Plans
from shardlab.widgets import plan_map_bars as bars
from shardlab.widgets import plan_map_choice as choice
from shardlab.widgets import plan_map_marks as drawing
from shardlab.widgets.picture import Adjustable, module
from shardlab.widgets.plan_map_mesh import Mesh
from shardlab.widgets.scene import Mark, as_json, to_svg
from shardlab.widgets.units import format_seconds, format_si

WIDTH = bars.WIDTH
MESH = (486.0, 0.0)  # left and top of the selected layout's mesh
BARS_TOP = 266.0
NO_LAYOUT = "No layout has these settings."


class PlanMap(Adjustable):
    """Made by `plan_map`. ``settings`` may be read and set.

    tensor, pipeline, recompute, ZeRO    "any", or a value that layouts must have, as text
    layout       the selected one, as text (str of a Layout); "": the fastest of those shown
    """

    _esm: ClassVar[str] = module("plan_map.js")

    def __init__(self, plans: Plans, published: Sequence[Measured]) -> None:
        self.plans = plans
        self.measured = choice.measured_layouts(plans, published)
        kept = choice.thinned(plans, self.measured)
        few = choice.only(plans, kept)
        self.shown = [few[at] for at in range(len(few))]
        self.limit = choice.limit_bytes(plans)
        self.runs = [self.measured.get(at) for at in kept]
        self.bars = self._bars(few, plans[choice.fastest(plans)])
        self.axes = drawing.Axes.around(
            [self.limit, *(each.total_bytes for each in self.shown)],
            [each.step_s for each in self.shown] + [run.seconds for run in self.measured.values()],
        )
        self._background = drawing.background(
            self.axes, self.limit, is_published=bool(self.measured)
        )
        meshes = list(dict.fromkeys(self._mesh(each) for each in self.shown))
        self._items = [
            self._item(each, run, meshes) for each, run in zip(self.shown, self.runs, strict=True)
        ]
        self._meshes = [each.marks(*MESH) for each in meshes]
        scene = {
            "width": WIDTH,
            "height": self.bars[-1].bottom + 8,
            "plot": [drawing.LEFT, drawing.TOP, drawing.RIGHT, drawing.BOTTOM],
            "background": as_json(self._background),
            "point": as_json([drawing.point(0, 0, fits=True)])[0],
            "faint": drawing.FAINT,
            "diamond": as_json([drawing.diamond(0, 0)])[0],
            "items": self._items,
            "meshes": [as_json(each) for each in self._meshes],
            "bars": [each.scene() for each in self.bars],
            "filters": choice.choices(few),
            "summary": self.summary(),
            "none": NO_LAYOUT,
            "small": self._small_print(),
            "headings": ["layout", "GB", "step", "MFU", "fits", "measured"],
        }
        anything = dict.fromkeys(choice.FILTERS, choice.ANY)
        super().__init__(scene=scene, settings={**anything, "layout": ""})
        self.observe(self.refresh, "settings")  # a saved notebook has the reader's choice

    def check(self, settings: dict[str, Any]) -> None:
        known = {**self.scene["filters"], "layout": ["", *(each["name"] for each in self._items)]}
        for name, value in settings.items():
            if name not in known:
                raise ValueError(f"{name}: expected one of {', '.join(known)}")
            if value not in known[name]:
                some = ", ".join(map(repr, known[name][:12]))
                raise ValueError(f"{name}={value!r}: must be one of those shown: {some}")

    def static_svg(self) -> str:
        footer, subtitle = self._small_print(), self._filtered()
        height = self.scene["height"]
        title = "Memory and time of layouts"
        return to_svg(self.marks(), WIDTH, height, title=title, subtitle=subtitle, footer=footer)

    def marks(self) -> list[Mark]:
        """The whole picture at the current settings."""
        items = self.items()
        marks = [*self._background, *drawing.points(items)]
        found = self.selected()
        if found is None:
            return marks
        item = self._items[found]
        marks += [*drawing.ring(item["x"], item["y"]), *self._meshes[item["mesh"]]]
        for bar, values in zip(self.bars, item["bars"], strict=True):
            marks += bar.marks(values)
        return marks

    def items(self) -> list[dict[str, Any]]:
        """Those that the filters let through, from the least memory on."""
        wanted = [self.settings[name] for name in choice.FILTERS]
        return [
            each
            for each in self._items
            if all(
                want in (choice.ANY, has) for want, has in zip(wanted, each["filters"], strict=True)
            )
        ]

    def selected(self) -> int | None:
        """The index in ``shown`` of the layout whose mesh and bars are drawn."""
        items = self.items()
        named = [each for each in items if each["name"] == self.settings["layout"]]
        fitting = [each for each in items if each["fits"]] or items
        named = named or sorted(fitting, key=lambda each: each["seconds"])[:1]
        return self._items.index(named[0]) if named else None

    def summary(self) -> str:
        plans = self.plans
        fitting = f"{int(plans.fits.sum()):,} of {len(plans):,} layouts"
        return (
            f"{fitting} of {plans.model.parameters / 1e9:.3g}B parameters fit on "
            f"{plans.cluster.devices:,} devices of {plans.cluster.capacity_bytes / 1e9:g} GB."
        )

    def alternative(self) -> str:
        found = self.selected()
        return f"{self.summary()} {NO_LAYOUT if found is None else self._items[found]['text']}"

    def describe(self, each: Plan, run: Measured | None = None) -> str:
        """What the line below the picture says about a layout."""
        fits = "" if each.fits else ", does not fit"
        words = f"{each.layout}: {each.total_bytes / 1e9:.3g} GB{fits}, "
        words += f"step {format_seconds(each.step_s)}, MFU {each.mfu:.0%}.".replace("%", "\u00a0%")
        if run is None:
            return words
        error = each.step_s / run.seconds - 1
        than = "more" if error > 0 else "less"
        return (
            f"{words} {run.name}: measured {format_seconds(run.seconds)}; planned "
            f"{abs(error) * 100:.1f} % {than}."
        )

    def _bars(self, few: Plans, best: Plan) -> list[bars.Bar]:
        step = bars.Bar(
            "Step", BARS_TOP, bars.STEP, format_seconds,
            ("fastest that fits" if best.fits else "least memory", best.step_s),
            bars.used(bars.STEP, few.step.parts),
        )  # fmt: skip
        memory = bars.Bar(
            "Memory", step.bottom + 8, bars.STORED, _gigabytes, ("at most", self.limit),
            bars.used(bars.STORED, few.memory_bytes),
        )  # fmt: skip
        return [step, memory]

    def _mesh(self, each: Plan) -> Mesh:
        at = each.layout
        nodes = self.plans.cluster.per_node
        return Mesh(at.data, at.tensor, at.pipeline, at.context, nodes, at.expert)

    def _item(self, each: Plan, run: Measured | None, meshes: Sequence[Mesh]) -> dict[str, Any]:
        layout = each.layout
        step, memory = self.bars
        item: dict[str, Any] = {
            "name": str(layout),
            "x": round(self.axes.x(each.total_bytes), 1),
            "y": round(self.axes.y(each.step_s), 1),
            "seconds": each.step_s,
            "fits": each.fits,
            "filters": [str(getattr(layout, field)) for field in choice.FILTERS.values()],
            "mesh": meshes.index(self._mesh(each)),
            "bars": [step.item(each.parts_s), memory.item(each.memory_bytes)],
            "text": self.describe(each, run),
            "row": [
                f"{each.total_bytes / 1e9:.3g}",
                format_seconds(each.step_s),
                f"{each.mfu:.0%}".replace("%", "\u00a0%"),
                "yes" if each.fits else "no",
                format_seconds(run.seconds) if run else "",
            ],
        }
        if run:
            item["measured"] = round(self.axes.y(run.seconds), 1)
        return item

    def _filtered(self) -> str:
        chosen = {name: self.settings[name] for name in choice.FILTERS}
        words = [f"{name} {value}" for name, value in chosen.items() if value != choice.ANY]
        return ", ".join(words)

    def _small_print(self) -> str:
        capacity = f"{self.plans.cluster.capacity_bytes / 1e9:g} GB"
        words = f"Dashed: {(1 - RESERVE) * 100:.0f} % of {capacity}; the rest is kept free. "
        if len(self.shown) == len(self.plans):
            return f"{words}All {len(self.plans):,} legal layouts are shown."
        return (
            f"{words}Shown: {len(self.shown):,} of {len(self.plans):,} legal layouts: up to "
            f"{choice.MOST_MEMORY:g} × a device's memory and {choice.MOST_TIME:g} × the fastest "
            "step, first the frontier, also of each filter alone, then the best few of each mesh. "
            "With several filters, the frontier is that of the layouts shown."
        )


def plan_map(plans: Plans, published: Sequence[Measured] = ()) -> PlanMap:
    """Draw all layouts of a plan by memory and time; select one to see its mesh and its step.

    published: measured steps of the same model, cluster and batch, drawn at the seconds that were
        measured and joined with the plan's.

    Raises ValueError if the plan has no layout, or a run is of something else.
    """
    if not len(plans):
        raise ValueError("plan_map: the plan has no legal layout")
    return PlanMap(plans, list(published))


def _gigabytes(count: float) -> str:
    return format_si(count, "B")
