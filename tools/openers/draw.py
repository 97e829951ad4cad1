"""An opener as an animated SVG: a cursor moves through the recorded time and uncovers the marks.

It is a picture (``<img>``) in a notebook's markdown, so only CSS moves it, and without CSS it is
complete. It plays twice and then stays as it is at the end. Where the system asks for less motion
it never moves. In the course's JupyterLab it has buttons (page/opener.js), which need to know how
long it plays and where to stop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from xml.sax.saxutils import escape

from shardlab.display.palette import MEMORY, OK, PHASES, WAIT, ink_on, op_color
from shardlab.widgets.scene import DARK, FONT, LIGHT, text_width
from shardlab.widgets.timeline_layout import WAITING
from shardlab.widgets.units import format_seconds
from tools.openers.opener import WAITS, Block, Level, Message, Opener

COLORS = {
    "compute": WAIT,
    **PHASES,
    "whole": MEMORY["parameters"],
    "copy": MEMORY["buckets"],
    "unfinished": WAIT,
    "checkpoint": OK,
    **MEMORY,
}
# An animated picture uses up to half a CPU core if no GPU renders it, even while paused.
PLAY_S, DELAY_S, ROUND_S, ROUNDS = 5.0, 1.0, 8.0, 2
LEAST_STEP_MS = 100  # of playing
WIDTH, LEFT, RIGHT = 660.0, 104.0, 16.0  # fits a notebook on a screen of 1100 pixels
TOP, BOTTOM = 14.0, 50.0
INK, MUTED, RULE, SURFACE = (f"var(--{role})" for role in ("text", "muted", "rule", "surface"))
TEXT = 12


def draw(opener: Opener) -> str:
    """A self-contained SVG document."""
    picture = _Picture(opener)
    body = [*picture.rows(), *picture.levels(), *picture.blocks(), *picture.messages()]
    height = _number(picture.bottom + BOTTOM)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height}" '
            f'width="{WIDTH:g}" height="{height}" font-family="{FONT}" font-size="{TEXT}" '
            f'data-play-ms="{1000 * PLAY_S:g}" data-delay-ms="{1000 * DELAY_S:g}" '
            f'data-moments-ms="{" ".join(map(str, picture.moments_ms()))}">',
            f"<title>{escape(opener.title)}</title><desc>{escape(opener.caption)}</desc>",
            picture.style(),
            f'<rect width="{WIDTH:g}" height="{height}" rx="8" fill="{SURFACE}"/>',
            *body,
            *picture.cover(),
            *picture.flights(),
            *picture.footer(),
            "</svg>\n",
        ]
    )


class _Picture:
    def __init__(self, opener: Opener) -> None:
        self.opener = opener
        self.lanes = 1 + max((block.lane for block in opener.blocks), default=0)
        few = len(opener.rows) <= 3
        self.row = (130.0 if few else 46.0) if opener.levels else max(28.0, 20.0 * self.lanes + 8)
        self.bottom = TOP + self.row * len(opener.rows)
        self.width = WIDTH - LEFT - RIGHT

    def x(self, at: float) -> float:
        return LEFT + self.width * at / self.opener.end

    def percent(self, at: float) -> float:
        """When the cursor is at this time, in percent of a round."""
        return 100 * PLAY_S / ROUND_S * at / self.opener.end

    def moments_ms(self) -> list[int]:
        """Where buttons stop that go step by step: when something begins, ends or changes."""
        opener = self.opener
        marks: list[Block | Message] = [*opener.blocks, *opener.messages]
        times = {at for mark in marks for at in (mark.start, mark.end)}
        times.update(at for level in opener.levels for at in level.times)
        found = [0]
        for at in sorted(times):
            moment = round(1000 * PLAY_S * at / opener.end)
            if moment - found[-1] >= LEAST_STEP_MS and 1000 * PLAY_S - moment >= LEAST_STEP_MS:
                found.append(moment)
        return found[1:]

    def middle(self, row: int) -> float:
        return TOP + self.row * (row + 0.5)

    def style(self) -> str:
        played = f"{100 * PLAY_S / ROUND_S:.2f}%"
        frames = "".join(
            f"@keyframes f{index}{{0%,{self.percent(each.start):.2f}%{{transform:none;opacity:0}}"
            f"{self.percent(each.start) + 0.01:.2f}%{{transform:none;opacity:1}}"
            f"{self.arrives(each):.2f}%{{transform:{self.flight(each)};opacity:1}}"
            f"{self.arrives(each) + 0.01:.2f}%,to{{opacity:0}}}}"
            for index, each in enumerate(self.opener.messages)
        )
        timing = f"{ROUND_S:g}s linear {DELAY_S:g}s {ROUNDS} backwards"
        return (
            f"<style>svg{{{_variables(LIGHT)}}}"
            f"@media(prefers-color-scheme:dark){{svg{{{_variables(DARK)}}}}}"
            ".cover{transform:scaleX(0);transform-origin:"
            f"{WIDTH - RIGHT + 1:g}px 0;animation:cover {timing}}}"
            f"@keyframes cover{{0%{{transform:none}}{played},to{{transform:scaleX(0)}}}}"
            f".cursor{{opacity:0;animation:cursor {timing}}}"
            f"@keyframes cursor{{0%{{transform:none;opacity:1}}{played}{{transform:"
            f"translateX({self.width:g}px);opacity:1}}{float(played[:-1]) + 0.1:.2f}%,to"
            "{opacity:0}}"
            f".dot{{opacity:0;animation:{timing}}}{frames}"
            "@media(prefers-reduced-motion:reduce){.cover,.cursor,.dot{animation:none!important}}"
            "</style>"
        )

    def rows(self) -> Iterator[str]:
        for row, name in enumerate(self.opener.rows):
            y = TOP + self.row * row
            yield _text(LEFT - 10, y + self.row / 2 + 4, name, INK, "end")
            if row:
                yield f'<path d="M{LEFT:g} {y:g}H{WIDTH - RIGHT:g}" stroke="{RULE}"/>'

    def levels(self) -> Iterator[str]:
        by_row: dict[int, list[Level]] = defaultdict(list)
        for level in self.opener.levels:
            by_row[level.row].append(level)
        highest = max((max(map(sum, _amounts(each))) for each in by_row.values()), default=1)
        for row, levels in by_row.items():
            floor, room = TOP + self.row * (row + 1) - 2, (self.row - 8) / highest
            below = [0.0] * len(levels[0].times)
            for level in levels:
                above = [low + amount for low, amount in zip(below, level.amounts, strict=True)]
                xs = [*map(self.x, level.times), self.x(self.opener.end)]
                up = "".join(
                    f"H{xs[i]:.1f}V{floor - room * high:.1f}" for i, high in enumerate(above)
                )
                down = "".join(
                    f"V{floor - room * low:.1f}H{xs[i]:.1f}"
                    for i, low in reversed(list(enumerate(below)))
                )
                start = f"M{xs[0]:.1f} {floor - room * below[0]:.1f}"
                yield (
                    f'<path d="{start}{up}H{xs[-1]:.1f}{down}Z" '
                    f'fill="{color_of(level.kind)}"><title>{level.kind}</title></path>'
                )
                below = above

    def blocks(self) -> Iterator[str]:
        height = (self.row - 8) / self.lanes
        for row, lane, start, end, kind, label in self.opener.blocks:
            x, y = self.x(start), TOP + self.row * row + 4 + height * lane
            width = max(self.x(end) - x, 1)
            color = color_of(kind)
            pale = f' opacity="{WAITING}"' if kind.endswith(WAITS) else ""
            yield (
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height - 1:.1f}" '
                f'rx="2" fill="{color}"{pale}/>'
            )
            if label and text_width(label, TEXT) <= width - 4:
                yield _text(x + width / 2, y + height / 2 + 4, label, ink_on(color), "middle")

    def messages(self) -> Iterator[str]:
        for message in self.opener.messages:
            dx, dy = self.offset(message)
            yield (
                f'<path d="M{self.x(message.start):.1f} {self.middle(message.from_row):.1f}'
                f'l{dx:.1f} {dy:.1f}" stroke="{INK}" stroke-width="1.5" stroke-opacity=".65"/>'
            )

    def flights(self) -> Iterator[str]:
        """A dot for each message that moves along its arrow."""
        for index, message in enumerate(self.opener.messages):
            yield (
                f'<circle class="dot" style="animation-name:f{index}" '
                f'cx="{self.x(message.start):.1f}" cy="{self.middle(message.from_row):.1f}" r="5" '
                f'fill="{INK}" stroke="{SURFACE}"/>'
            )

    def offset(self, message: Message) -> tuple[float, float]:
        return (
            self.x(message.end) - self.x(message.start),
            self.middle(message.to_row) - self.middle(message.from_row),
        )

    def flight(self, message: Message) -> str:
        dx, dy = self.offset(message)
        return f"translate({dx:.1f}px,{dy:.1f}px)"

    def arrives(self, message: Message) -> float:
        """In percent of a round; a short flight still takes a tenth of a second."""
        least = 100 * 0.1 / ROUND_S
        return max(self.percent(message.end), self.percent(message.start) + least)

    def cover(self) -> Iterator[str]:
        """What the cursor takes away as it moves, so that marks appear when they happened."""
        x, height = LEFT - 1, self.bottom - TOP
        yield (
            f'<rect class="cover" x="{x:g}" y="{TOP - 2:g}" width="{self.width + 2:g}" '
            f'height="{height + 4:g}" fill="{SURFACE}"/>'
        )
        yield f'<path class="cursor" d="M{LEFT:g} {TOP - 4:g}v{height + 8:g}" stroke="{INK}"/>'
        yield (
            f'<rect x="{LEFT:g}" y="{TOP:g}" width="{self.width:g}" height="{height:g}" '
            f'fill="none" stroke="{RULE}"/>'
        )

    def footer(self) -> Iterator[str]:
        """The time, and what the colors mean."""
        y = self.bottom + 16
        end = self.opener.end
        length = format_seconds(end) if self.opener.unit == "s" else f"{end:g} {self.opener.unit}"
        yield _text(LEFT, y, "0", MUTED)
        slower = f"{PLAY_S / end:,.0f} times slower" if self.opener.unit == "s" else ""
        if slower:
            note = f"time, {slower} than in reality"
            yield _text(LEFT + self.width / 2, y, note, MUTED, "middle")
        yield _text(LEFT + self.width, y, length, MUTED, "end")
        x = LEFT
        for kind in self.kinds():
            yield (
                f'<rect x="{x:.1f}" y="{y + 12:g}" width="10" height="10" rx="2" '
                f'fill="{color_of(kind)}"/>'
            )
            yield _text(x + 15, y + 21, kind, MUTED)
            x += 34 + text_width(kind, TEXT)
        if any(block.kind.endswith(WAITS) for block in self.opener.blocks):
            yield _text(x, y + 21, "fainter: the other rank has not begun yet", MUTED)

    def kinds(self) -> list[str]:
        marks: list[Block | Level] = [*self.opener.levels, *self.opener.blocks]
        return list(dict.fromkeys(mark.kind.removesuffix(WAITS) for mark in marks))


def color_of(kind: str) -> str:
    return COLORS.get(kind) or op_color(kind)


def _variables(colors: dict[str, str]) -> str:
    return ";".join(f"--{role}:{color}" for role, color in colors.items())


def _amounts(levels: list[Level]) -> Iterator[tuple[float, ...]]:
    return zip(*(level.amounts for level in levels), strict=True)


def _text(x: float, y: float, text: str, fill: str, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}">{escape(text)}</text>'
    )


def _number(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")
