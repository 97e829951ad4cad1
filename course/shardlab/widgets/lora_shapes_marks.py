"""Numbers and marks of the LoRA shapes. ``lora_shapes_marks.js`` has the same; a test compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardlab.display.palette import CALLS, MEMORY, ink_on
from shardlab.estimate import lora
from shardlab.estimate.memory import FP32_BYTES, STATE_BYTES
from shardlab.widgets.scene import Mark, Rect, Text
from shardlab.widgets.units import format_count, format_si

WIDTH, HEIGHT = 660.0, 404.0
SHAPES_TOP, SHAPES = 64.0, 170.0  # y and height of the matrices; their names are above
GAP, MIN_PITCH = 44.0, 125.0  # between two weights, and from one to the next
MIN_THICKNESS, MIN_LETTERED = 1.0, 14.0  # pixels, of an adapter and of a matrix with its letter
BARS_LEFT, BARS_RIGHT = 46.0, 560.0  # the values are to the right
MEMORY_Y, SENT_Y, ROW = 262.0, 348.0, 22.0
# name of a weight: (rows, columns) in units of d; fused queries, keys and values as in GPT-2
MODULES = {
    "q, v": {"W_q": (1, 1), "W_v": (1, 1)},
    "all linear": {"W_qkv": (3, 1), "W_out": (1, 1), "W_up": (4, 1), "W_down": (1, 4)},
}
LOOKS = {
    **{name: MEMORY[name] for name in ("parameters", "gradients", "optimizer")},
    "sent": CALLS["all_reduce"],
}
Box = tuple[float, float, float, float]  # x, y, width, height


@dataclass(frozen=True)
class Costs:
    """Counts of the whole model; bytes on each rank, or sent by each rank in a step."""

    parameters: int
    adapter_parameters: int
    full_bytes: int
    lora_bytes: int
    full_sent_bytes: float
    lora_sent_bytes: float


def shapes_of(settings: Mapping[str, Any], modules: str) -> dict[str, lora.Shape]:
    """(rows, columns) of the weights of one layer."""
    d = settings["width"]
    return {name: (rows * d, columns * d) for name, (rows, columns) in MODULES[modules].items()}


def costs_of(settings: Mapping[str, Any]) -> Costs:
    """The costs with DDP, where each rank has everything."""
    layers, ranks = settings["layers"], settings["ranks"]
    linear = shapes_of(settings, "all linear").values()
    parameters = layers * sum(rows * columns for rows, columns in linear)
    shapes = shapes_of(settings, settings["modules"]).values()
    adapters = layers * lora.adapter_parameters(shapes, settings["r"])
    return Costs(
        parameters,
        adapters,
        lora.trained_bytes(parameters),
        FP32_BYTES * parameters + lora.trained_bytes(adapters),
        lora.sent_bytes(parameters, ranks),
        lora.sent_bytes(adapters, ranks),
    )


def trained_text(costs: Costs) -> str:
    trained, total = costs.adapter_parameters, costs.parameters
    share = 100 * trained / total
    return f"{format_count(trained)} trained parameters, {share:.3g} % of {format_count(total)}"


def boxes_of(settings: Mapping[str, Any]) -> dict[str, dict[str, Box]]:
    """For each weight, the boxes of W, of A above it, and of B to its right."""
    shapes, r = shapes_of(settings, settings["modules"]), settings["r"]
    scale = SHAPES / (max(rows for rows, _ in shapes.values()) + r)
    thin = max(r * scale, MIN_THICKNESS)
    found, x = {}, 0.0
    for name, (rows, columns) in shapes.items():
        width, height, y = columns * scale, rows * scale, SHAPES_TOP + thin + 2
        found[name] = {
            "W": (x, y, width, height),
            "A": (x, SHAPES_TOP, width, thin),
            "B": (x + width + 2, y, thin, height),
        }
        x += max(width + thin + GAP, MIN_PITCH)
    return found


def marks_of(settings: Mapping[str, Any]) -> list[Mark]:
    """The marks, from top to bottom: matrices, memory, bytes sent."""
    marks: list[Mark] = []
    shapes, r = shapes_of(settings, settings["modules"]), settings["r"]
    for name, boxes in boxes_of(settings).items():
        rows, columns = shapes[name]
        x = boxes["W"][0]
        lines = (f"{rows:,} × {columns:,}", f"A: {r} × {columns:,}", f"B: {rows:,} × {r}")
        marks.append(Text(x=x, y=12, text=name, weight=600))
        marks += [_small(x, 27 + 14 * row, text) for row, text in enumerate(lines)]
        for kind, box in boxes.items():
            marks += _matrix(kind, box)
    return marks + _memory_marks(costs_of(settings)) + _sent_marks(costs_of(settings))


def _matrix(kind: str, box: Box) -> list[Mark]:
    """A matrix, with its letter if there is room."""
    x, y, width, height = box
    color = LOOKS["parameters"]
    marks = [_rect(box, color, kind == "W")]
    if min(width, height) >= MIN_LETTERED:
        ink = "text" if kind == "W" else ink_on(color)
        middle, base = x + width / 2, y + height / 2 + 4
        marks.append(Text(x=middle, y=base, text=kind, anchor="middle", weight=600, fill=ink))
    return marks


def _memory_marks(costs: Costs) -> list[Mark]:
    trained = {
        "parameters": FP32_BYTES, "gradients": FP32_BYTES, "optimizer": int(STATE_BYTES["adam"]),
    }  # fmt: skip
    scale = (BARS_RIGHT - BARS_LEFT) / max(costs.full_bytes, costs.lora_bytes)
    marks: list[Mark] = [
        Text(x=0, y=MEMORY_Y, text="Memory of each rank", weight=600),
        *_legend(),
    ]
    rows = (
        ("full", 0, costs.parameters, costs.full_bytes),
        ("LoRA", costs.parameters, costs.adapter_parameters, costs.lora_bytes),
    )
    for row, (label, frozen, elements, total) in enumerate(rows):
        y, x = MEMORY_Y + 10 + ROW * row, BARS_LEFT
        marks.append(Text(x=0, y=y + 12, text=label))
        parts = [(frozen * FP32_BYTES, "parameters", True)]
        parts += [(elements * each, name, False) for name, each in trained.items()]
        for size, name, hatched in parts:
            if size:
                marks.append(_rect((x, y, size * scale, 15.0), LOOKS[name], hatched))
            x += size * scale
        marks.append(Text(x=x + 8, y=y + 12, text=format_si(total, "B"), fill="muted"))
    return marks


def _legend() -> list[Mark]:
    """The legend, to the right of the heading."""
    marks: list[Mark] = []
    looks = (
        (150, "parameters", "frozen weights", True), (268, "parameters", "trained weights", False),
        (392, "gradients", "gradients", False), (480, "optimizer", "Adam's states", False),
    )  # fmt: skip
    for x, name, text, hatched in looks:
        marks.append(_rect((x, MEMORY_Y - 9, 10.0, 10.0), LOOKS[name], hatched))
        marks.append(_small(x + 15, MEMORY_Y, text))
    return marks


def _sent_marks(costs: Costs) -> list[Mark]:
    marks: list[Mark] = [Text(x=0, y=SENT_Y, text="Sent by each rank in a step", weight=600)]
    max_bytes = max(costs.full_sent_bytes, costs.lora_sent_bytes, 1.0)
    for row, (label, sent) in enumerate(
        (("full", costs.full_sent_bytes), ("LoRA", costs.lora_sent_bytes))
    ):
        y, width = SENT_Y + 10 + ROW * row, sent / max_bytes * (BARS_RIGHT - BARS_LEFT)
        marks.append(Text(x=0, y=y + 12, text=label))
        marks.append(_rect((BARS_LEFT, y, width, 15.0), LOOKS["sent"], False))
        text = format_si(sent, "B")
        marks.append(Text(x=BARS_LEFT + width + 8, y=y + 12, text=text, fill="muted"))
    return marks


def _rect(box: Box, fill: str, hatched: bool) -> Mark:
    x, y, width, height = box
    return Rect(x=x, y=y, width=width, height=height, fill=fill, hatch=hatched)


def _small(x: float, y: float, text: str) -> Mark:
    return Text(x=x, y=y, text=text, size=11, fill="muted")
