"""LoRA shapes: W, A and B of one layer to scale, and the bytes for training them or all weights.

The picture is for a GPT of width d: 12·d² weights in the linear layers of each block.  Adapters are
on W_q and W_v, as in Hu et al., arXiv 2106.09685, or on all linear layers.  Everything is in fp32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from shardlab.display.palette import ink_on
from shardlab.estimate.lora import TRAINED_BYTES
from shardlab.estimate.memory import FP32_BYTES, STATE_BYTES
from shardlab.widgets.lora_shapes_marks import (
    HEIGHT,
    LOOKS,
    MODULES,
    WIDTH,
    Costs,
    costs_of,
    marks_of,
    trained_text,
)
from shardlab.widgets.picture import Adjustable, module
from shardlab.widgets.scene import to_svg
from shardlab.widgets.units import format_count, format_si

MODELS = {"0.3M": (96, 2), "GPT-2": (768, 12), "GPT-3": (12288, 96)}
SLIDERS = {
    "width": ("Width d", sorted({2**power for power in range(6, 15)} | {96, 768, 12288})),
    "layers": ("Layers", [1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 80, 96, 128]),
    "r": ("LoRA rank r", [2**power for power in range(10)]),
    "ranks": ("Ranks N", [2**power for power in range(11)]),
}
SMALL_PRINT = (
    "A is above W, B to its right; drawn to scale, but at least 1 pixel thick. fp32; only linear "
    "layers of the blocks; no activations. Sent: the gradients, in a ring all-reduce."
)


class LoraShapes(Adjustable):
    """Made by `lora_shapes`.

    ``settings`` may be read and set: width (d), layers, modules ("q, v" or "all linear"), r and
    ranks (N).
    """

    _esm: ClassVar[str] = module("lora_shapes_marks.js", "lora_shapes.js")

    def __init__(self, settings: dict[str, Any]) -> None:
        scene = {
            "width": WIDTH,
            "height": HEIGHT,
            "looks": LOOKS,
            "ink": ink_on(LOOKS["parameters"]),
            # As lists: a saved notebook sorts the keys of objects.
            "modules": [[name, [*shapes.items()]] for name, shapes in MODULES.items()],
            "models": [*MODELS.items()],
            "sliders": [[name, *slider] for name, slider in SLIDERS.items()],
            "trained_bytes": TRAINED_BYTES,
            "element_bytes": FP32_BYTES,
            "adam_bytes": STATE_BYTES["adam"],
            "small": SMALL_PRINT,
        }
        super().__init__(scene=scene, settings=settings)

    def check(self, settings: dict[str, Any]) -> None:
        check_settings(settings)

    @property
    def costs(self) -> Costs:
        return costs_of(self.settings)

    def static_svg(self) -> str:
        return to_svg(
            marks_of(self.settings),
            WIDTH,
            HEIGHT,
            title="LoRA's matrices",
            subtitle=sizes(self.settings),
            footer=SMALL_PRINT,
        )

    def summary(self) -> str:
        costs = self.costs
        full, lora = format_si(costs.full_bytes, "B"), format_si(costs.lora_bytes, "B")
        full_sent, lora_sent = (
            format_si(sent, "B") for sent in (costs.full_sent_bytes, costs.lora_sent_bytes)
        )
        return (
            f"{sizes(self.settings)}, r = {self.settings['r']} on {self.settings['modules']}: "
            f"{trained_text(costs)}; memory of each rank: {lora} instead of {full}; sent by each "
            f"rank in a step: {lora_sent} instead of {full_sent}"
        )


def lora_shapes(
    width: int = 768, layers: int = 12, *, modules: str = "q, v", r: int = 8, world_size: int = 4
) -> LoraShapes:
    """Draw W, A and B to scale, and memory and traffic compared with full fine-tuning.

    width, layers: of the model, d and L.
    modules: the weights with adapters, "q, v" or "all linear".
    r: the rank of the adapters, at most d.

    Raises ValueError for impossible settings.
    """
    settings = {
        "width": width, "layers": layers, "modules": modules, "r": r, "ranks": world_size,
    }  # fmt: skip
    check_settings(settings)
    return LoraShapes(settings)


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raises ValueError for impossible settings."""
    if settings["modules"] not in MODULES:
        raise ValueError(f"modules={settings['modules']!r}: must be one of {list(MODULES)}")
    for name in SLIDERS:
        if settings[name] < 1:
            raise ValueError(f"{name}={settings[name]}: must be 1 or more")
    if settings["r"] > settings["width"]:
        raise ValueError(f"r={settings['r']}: must be at most the width, {settings['width']}")


def sizes(settings: Mapping[str, Any]) -> str:
    layers, ranks = settings["layers"], settings["ranks"]
    return (
        f"d = {format_count(settings['width'])}, {layers} layer{'s' * (layers != 1)}, "
        f"{ranks:,} rank{'s' * (ranks != 1)}"
    )
