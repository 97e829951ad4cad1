"""Each color has one meaning, and colors of the same picture are distinguishable."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from shardlab.display import palette
from shardlab.display.palette import AXES, CALLS, MEMORY, PHASES, RANKS, WORK, luminance
from shardlab.run.live_memory import CATEGORIES
from shardlab.widgets import color_legend

ROOT = Path(__file__).parents[3]
LIGHT_PAGE, DARK_PAGE = "#ffffff", "#111111"  # JupyterLab's --jp-layout-color0
RESULTS = {
    name: getattr(palette, name) for name in ("PREDICTED", "MEASURED", "WAIT", "ERROR", "OK")
}
ALL_COLORS = {
    **RESULTS,
    **{f"rank {rank}": color for rank, color in enumerate(RANKS)},
    **{f"memory {name}": color for name, color in MEMORY.items()},
    **{f"phase {name}": color for name, color in PHASES.items()},
    **{f"state {name}": color for name, color in palette.STATES.items()},
    **{f"axis {name}": color for name, color in AXES.items()},
    **{f"work {name}": color for name, color in WORK.items()},
    **{f"call {name}": color for name, color in CALLS.items()},
    "another call": palette.OTHER_CALL,
    **{f"part {index}": color for index, color in enumerate(palette.PARTS)},
    "another part": palette.OTHER_PART,
}


def some(*names: str) -> list[str]:
    return [ALL_COLORS[name] for name in names]


RESULT, COMPARED = list(RESULTS.values()), some("PREDICTED", "MEASURED")
RING = some("call all_reduce", "call all_gather", "call reduce_scatter")
# {picture: (its colors, minimum distance, minimum distance for color-blind readers)}
TOGETHER = {
    "results": (RESULT, 0.10, 0.05),
    "memory bars": ([*MEMORY.values(), *COMPARED, palette.ERROR], 0.08, 0.04),
    "timeline": ([*CALLS.values(), palette.OTHER_CALL, palette.ERROR, palette.WAIT], 0.08, 0.025),
    "states in a timeline": ([*palette.STATES.values(), palette.WAIT, palette.ERROR], 0.12, 0.06),
    # They have a lane of their own: no minimum for color-blind readers between the two lanes.
    "timeline with states": ([*palette.STATES.values(), *CALLS.values()], 0.045, 0.0),
    "pipeline schedule": ([*PHASES.values(), palette.WAIT], 0.11, 0.06),
    "offload times": (
        [
            *some("phase forward", "phase backward", "phase update", "WAIT", "OK", "ERROR"),
            *some("memory parameters", "memory gradients", "memory optimizer"),
        ],
        0.07, 0.025,
    ),
    "unit life": (
        [*PHASES.values(), *some("memory parameters", "memory gradients", "memory buckets"), *RING],
        0.05, 0.0,
    ),
    "quantization grid": (some("memory parameters", "MEASURED"), 0.08, 0.04),
    "LoRA shapes": (
        some("memory parameters", "memory gradients", "memory optimizer", "call all_reduce"),
        0.05, 0.025,
    ),
    "plan map": (
        [*AXES.values(), *WORK.values(), *COMPARED, *some("WAIT", "phase update")], 0.08, 0.035,
    ),
    # Ranks are also identified by number or position: no minimum for color-blind readers.
    "tensor split": ([*RANKS, *RING, *COMPARED], 0.06, 0.0),
    "ring player": ([*RANKS, *some("OK", "ERROR", "call send")], 0.06, 0.0),
    "shard map": ([*palette.PARTS, palette.OTHER_PART, palette.WAIT], 0.06, 0.0),
}  # fmt: skip

# Björn Ottosson's OKLab, in which equal distances look equally large.
_TO_CONES = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]])
_TO_LAB = np.array(
    [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]
)
# Machado, Oliveira and Fernandes 2009, severity 1.
_COLOR_BLIND = {
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
}


def seen(color: str, vision: str = "") -> NDArray[np.float64]:
    """A color in OKLab, as seen with normal vision or with a color vision deficiency."""
    channels = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    if vision:
        linear = np.clip(np.array(_COLOR_BLIND[vision]) @ linear, 0, 1)
    return _TO_LAB @ np.cbrt(_TO_CONES @ linear)


def distance(one: str, other: str, vision: str = "") -> float:
    return float(np.linalg.norm(seen(one, vision) - seen(other, vision)))


def contrast(one: str, other: str) -> float:
    """WCAG's contrast ratio, from 1 to 21."""
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def test_no_two_meanings_share_a_color() -> None:
    too_similar = [
        f"{a} and {b}"
        for (a, one), (b, other) in combinations(ALL_COLORS.items(), 2)
        if distance(one, other) < 0.035
    ]
    assert too_similar == []


def test_no_other_meaning_looks_predicted_or_measured() -> None:
    for name in ("PREDICTED", "MEASURED"):
        color = ALL_COLORS[name]
        near = [other for other in ALL_COLORS if distance(ALL_COLORS[other], color) < 0.08]
        assert near == [name]


@pytest.mark.parametrize("picture", TOGETHER)
def test_colors_of_one_picture_are_distinguishable_with_any_color_vision(picture: str) -> None:
    colors, minimum, minimum_color_blind = TOGETHER[picture]
    for one, other in combinations(colors, 2):
        assert distance(one, other) >= minimum, (one, other)
        for vision in _COLOR_BLIND:
            assert distance(one, other, vision) >= minimum_color_blind, (one, other, vision)


def test_predicted_and_measured_differ_clearly_with_any_color_vision() -> None:
    assert all(distance(*COMPARED, vision) > 0.15 for vision in ("", *_COLOR_BLIND))


def test_measured_is_readable_on_a_dark_page() -> None:
    assert contrast(palette.MEASURED, DARK_PAGE) >= 4.5
    assert contrast(palette.MEASURED, LIGHT_PAGE) >= 4


def test_every_color_has_enough_contrast_with_both_themes_and_with_text_on_it() -> None:
    for name, color in ALL_COLORS.items():
        assert min(contrast(color, page) for page in (LIGHT_PAGE, DARK_PAGE)) >= 3, name
        assert contrast(color, palette.ink_on(color)) >= 4.5, name


def test_the_legend_explains_every_color() -> None:
    svg = color_legend().svg
    assert [name for name, color in ALL_COLORS.items() if color not in svg] == ["another call"]


def test_memory_categories_are_stacked_in_the_recorders_order() -> None:
    assert tuple(MEMORY) == CATEGORIES


@pytest.mark.parametrize("folder", ["course", "solutions", "tools"])
def test_colors_come_from_the_palette(folder: str) -> None:
    """Except for text and lines, which have the page's colors or are black and white."""
    inks = {"palette.py", "scene.py", "readme_picture.py"}
    literals = [
        f"{path.relative_to(ROOT)}: {found}"
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in {".py", ".js"} and path.name not in inks
        for found in re.findall(
            r"#[0-9a-fA-F]{6}\b|\bcolor=\"\w+\"|[\"']C\d[\"']", path.read_text(encoding="utf-8")
        )
    ]
    assert literals == []


def test_style_sheets_have_the_palettes_colors() -> None:
    """Except for fallback values of JupyterLab's theme variables."""
    known = {color.lower() for color in ALL_COLORS.values()}
    for path in (ROOT / "course/shardlab/widgets").glob("*.css"):
        css = re.sub(r"var\([^;]*;", "", path.read_text(encoding="utf-8").lower())
        assert set(re.findall(r"#[0-9a-f]{6}\b", css)) <= known, path.name
