"""A small table under a cell: HTML in a notebook, aligned text elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from numbers import Number
from typing import Any

Format = str | Callable[[Any], str]
_CAPTION = 'style="caption-side: top; text-align: left"'
_ALIGN = 'style="text-align: {}; font-variant-numeric: tabular-nums"'


@dataclass(frozen=True)
class Table:
    """Formatted cells. ``right``: which columns are aligned on the right, as numbers are."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[bool, ...]
    caption: str = ""

    def __repr__(self) -> str:
        lines = (self.headings, *self.rows)
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        above = f"{self.caption}:\n" if self.caption else ""
        return above + "\n".join(
            "  ".join(
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(line, widths, self.right, strict=True)
            ).rstrip()
            for line in lines
        )

    def _repr_html_(self) -> str:
        head = self._html_row("th", ["col"] * len(self.headings), self.headings)
        # What a row is about is in its first cell.
        scopes = ["row", *[""] * (len(self.headings) - 1)]
        body = "".join(self._html_row("td", scopes, row) for row in self.rows)
        caption = f"<caption {_CAPTION}>{escape(self.caption)}</caption>" if self.caption else ""
        return f"<table>{caption}<thead>{head}</thead><tbody>{body}</tbody></table>"

    def _html_row(self, tag: str, scopes: Sequence[str], cells: Sequence[str]) -> str:
        html = ""
        for scope, cell, right in zip(scopes, cells, self.right, strict=True):
            align = _ALIGN.format("right" if right else "left")
            opening = f'th scope="{scope}"' if scope else tag
            html += f"<{opening} {align}>{escape(cell)}</{opening.split()[0]}>"
        return f"<tr>{html}</tr>"


def show_table(
    columns: Mapping[str, Format], rows: Iterable[Sequence[Any]], *, caption: str = ""
) -> None:
    """Show ``rows`` as a table, at once, like ``print``.

    columns: {heading with its unit: format}. A format is a format spec (``".2f"``, ``",d"``), a
        function from a value to its text (``format_bytes``), or ``""`` for ``str``.
    rows: one sequence of values a row, as long as ``columns``. None is shown as a dash.
    caption: what all its numbers are, with their unit, if that is not in the headings.

    Raises ValueError where a row has another length.
    """
    from IPython.display import display  # not on each rank

    display(table(columns, rows, caption))


def table(columns: Mapping[str, Format], rows: Iterable[Sequence[Any]], caption: str = "") -> Table:
    """The table that `show_table` shows."""
    values = [list(row) for row in rows]
    for row in values:
        if len(row) != len(columns):
            raise ValueError(f"a row of {len(row)} values for {len(columns)} columns: {row}")
    formats = list(columns.values())
    return Table(
        tuple(columns),
        tuple(tuple(map(_text, row, formats)) for row in values),
        tuple(
            any(isinstance(row[index], Number) for row in values) for index in range(len(columns))
        ),
        caption,
    )


def _text(value: Any, form: Format) -> str:
    if value is None:
        return "–"
    return form(value) if callable(form) else format(value, form)
