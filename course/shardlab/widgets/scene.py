"""A picture as a list of marks: drawn on a canvas by ``canvas.js``, written as SVG here.

Lengths are CSS pixels. A color is ``#rrggbb`` or a role that follows the page's theme:
"text", "muted", "rule", "surface".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any
from xml.sax.saxutils import escape

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"

# role: (JupyterLab's variable, VS Code's)
ROLES = {
    "text": ("--jp-content-font-color1", "--vscode-editor-foreground"),
    "muted": ("--jp-content-font-color2", "--vscode-descriptionForeground"),
    "rule": ("--jp-border-color1", "--vscode-panel-border"),
    "surface": ("--jp-layout-color0", "--vscode-editor-background"),
}
# Used where these variables do not exist, as in an <img>; DARK if prefers-color-scheme is dark.
LIGHT = {"text": "#1f2328", "muted": "#59636e", "rule": "#c5ccd3", "surface": "#ffffff"}
DARK = {"text": "#ffffff", "muted": "#b2b2b2", "rule": "#616161", "surface": "#111111"}


@dataclass(frozen=True, kw_only=True)
class Mark:
    """The fields that all marks have. ``hatch``: the fill is stripes of its color."""

    fill: str = "none"
    opacity: float = 1.0
    stroke: str = "none"
    stroke_width: float = 1.0
    dash: str = ""
    hatch: bool = False


@dataclass(frozen=True, kw_only=True)
class Rect(Mark):
    x: float
    y: float
    width: float
    height: float
    radius: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Path(Mark):
    d: str  # SVG path data, which a canvas accepts too


@dataclass(frozen=True, kw_only=True)
class Text(Mark):
    x: float
    y: float  # of the baseline
    text: str
    size: float = 12.0
    anchor: str = "start"  # "middle", "end"
    weight: int = 400
    fill: str = "text"


@dataclass(frozen=True, kw_only=True)
class Group(Mark):
    """Marks at another place and size. Only for SVG: the browser draws its own."""

    x: float
    y: float
    scale: float
    marks: tuple[Mark, ...]


def line(
    x1: float, y1: float, x2: float, y2: float, *, stroke: str = "rule", opacity: float = 1.0
) -> Path:
    """A straight line."""
    d = f"M{_number(x1)} {_number(y1)}L{_number(x2)} {_number(y2)}"
    return Path(d=d, stroke=stroke, opacity=opacity)


def text_width(text: str, size: float) -> float:
    """A generous estimate of the width of ``text`` in a system font."""
    return 0.58 * size * len(text)


def wrap(text: str, size: float, width: float) -> list[str]:
    """``text`` in lines that fit ``width``."""
    lines: list[str] = []
    for word in text.split():
        if lines and text_width(f"{lines[-1]} {word}", size) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def as_json(marks: Iterable[Mark]) -> list[dict[str, Any]]:
    """Marks as plain data, without the fields at their default."""
    return [_mark_as_json(mark) for mark in marks]


def _mark_as_json(mark: Mark) -> dict[str, Any]:
    data: dict[str, Any] = {"kind": type(mark).__name__.lower()}
    for entry in fields(mark):
        value = getattr(mark, entry.name)
        if entry.default is MISSING or value != entry.default:
            data[entry.name] = round(value, 2) if isinstance(value, float) else value
    return data


def to_svg(
    marks: Sequence[Mark],
    width: float,
    height: float,
    *,
    title: str,
    subtitle: str = "",
    footer: str = "",
) -> str:
    """A self-contained picture: a card with a heading above and small print below.

    The card is opaque, so it is legible on light and dark pages. Inlined in a page of JupyterLab or
    nbconvert, it has the theme's colors; as an image, those of the page's color-scheme.
    """
    margin = 16.0
    room = width - (text_width(subtitle, 12) + 16 if subtitle else 0)
    title_lines, footer_lines = wrap(title, 14, room), wrap(footer, 11, width)
    head = 26.0 + 18 * len(title_lines)
    foot = 8.0 + 15 * len(footer_lines)
    full_width, full_height = width + 2 * margin, head + height + foot
    frame: list[Mark] = [
        Rect(
            x=0.5, y=0.5, width=full_width - 1, height=full_height - 1,
            radius=8, fill="surface", stroke="rule",
        ),
        Text(x=full_width - margin, y=25, text=subtitle, anchor="end", fill="muted"),
    ]  # fmt: skip
    for row, words in enumerate(title_lines):
        frame.append(Text(x=margin, y=25 + 18 * row, text=words, size=14, weight=600))
    for row, words in enumerate(footer_lines):
        y = head + height + 8 + 15 * row
        frame.append(Text(x=margin, y=y, text=words, size=11, fill="muted"))
    style = f"{_style(LIGHT)}@media(prefers-color-scheme:dark){{{_style(DARK)}}}"
    hatches = sorted({mark.fill for mark in marks if mark.hatch})
    return "".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" class="shardlab-static" role="img" ',
            f'viewBox="0 0 {_number(full_width)} {_number(full_height)}" ',
            f'width="{_number(full_width)}" height="{_number(full_height)}" ',
            f'font-family="{FONT}" style="max-width:100%;height:auto">',
            f"<title>{_escape(f'{title}: {subtitle}' if subtitle else title)}</title>",
            f"<style>{style}</style>",
            "<defs>" + "".join(map(_pattern, hatches)) + "</defs>" if hatches else "",
            *map(_svg, frame),
            f'<g transform="translate({_number(margin)} {_number(head)})">',
            *map(_svg, marks),
            "</g></svg>",
        ]
    )


def _style(colors: dict[str, str]) -> str:
    return "".join(
        f".shardlab-static .{kind}-{role}{{{kind}:var({lab},var({code},{colors[role]}))}}"
        for role, (lab, code) in ROLES.items()
        for kind in ("fill", "stroke")
    )


def _svg(mark: Mark) -> str:
    paint = _colors(mark)
    if mark.stroke != "none" and mark.stroke_width != 1:
        paint += f' stroke-width="{_number(mark.stroke_width)}"'
    if mark.dash:
        paint += f' stroke-dasharray="{mark.dash}"'
    if mark.opacity != 1:
        paint += f' opacity="{_number(mark.opacity)}"'
    if isinstance(mark, Rect):
        place = "".join(
            f' {name}="{_number(value)}"'
            for name, value in (
                ("x", mark.x), ("y", mark.y), ("width", mark.width), ("height", mark.height),
            )
        )  # fmt: skip
        corner = f' rx="{_number(mark.radius)}"' if mark.radius else ""
        return f"<rect{place}{corner}{paint}/>"
    if isinstance(mark, Path):
        return f'<path d="{mark.d}"{paint}/>'
    if isinstance(mark, Text):
        return (
            f'<text x="{_number(mark.x)}" y="{_number(mark.y)}" font-size="{_number(mark.size)}"'
            f' text-anchor="{mark.anchor}" font-weight="{mark.weight}"{paint}>'
            f"{_escape(mark.text)}</text>"
        )
    if isinstance(mark, Group):
        place = f"translate({_number(mark.x)} {_number(mark.y)}) scale({_number(mark.scale)})"
        return f'<g transform="{place}">{"".join(map(_svg, mark.marks))}</g>'
    raise TypeError(f"no SVG for {type(mark).__name__}")


def _colors(mark: Mark) -> str:
    classes, paint = [], ""
    for kind, color in (("fill", mark.fill), ("stroke", mark.stroke)):
        if kind == "fill" and mark.hatch:
            paint += f' fill="url(#{_pattern_id(color)})"'
        elif color in ROLES:
            # The attribute is for viewers without CSS variables; elsewhere the class wins.
            paint += f' {kind}="{LIGHT[color]}"'
            classes.append(f"{kind}-{color}")
        elif color != "none" or kind == "fill":
            paint += f' {kind}="{color}"'
    return paint + (f' class="{" ".join(classes)}"' if classes else "")


def _pattern_id(color: str) -> str:
    return f"shardlab-hatch-{color.lstrip('#')}"


def _pattern(color: str) -> str:
    return (
        f'<pattern id="{_pattern_id(color)}" width="7" height="7" '
        'patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<rect width="7" height="7" fill="{color}" opacity="0.22"/>'
        f'<rect width="2" height="7" fill="{color}" opacity="0.95"/></pattern>'
    )


def _escape(text: str) -> str:
    # XML has no way to write control characters, not even escaped.
    return escape("".join(c if c.isprintable() else " " for c in text))


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
