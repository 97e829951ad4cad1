"""Tables: aligned text in a terminal, headers and alignment in a notebook."""

from __future__ import annotations

import pytest

from shardlab.display.html_table import show_table, table
from shardlab.widgets.units import format_bytes

COLUMNS = {"method": "", "sent": format_bytes, "of Ψ": ".2f"}
ROWS = [("ring", 2**20, 1.5), ("<hub>", 3 * 2**20, None)]


def test_in_text_numbers_are_right_aligned() -> None:
    assert repr(table(COLUMNS, ROWS)).splitlines() == [
        "method     sent  of Ψ",
        "ring    1.0 MiB  1.50",
        "<hub>   3.0 MiB     –",
    ]


def test_in_html_headers_are_marked_and_data_is_escaped() -> None:
    html = table(COLUMNS, ROWS)._repr_html_()
    assert html.count('scope="col"') == 3
    assert html.count('scope="row"') == 2
    assert "&lt;hub&gt;" in html
    assert html.count("text-align: right") == 2 * 3


def test_a_caption_describes_the_numbers() -> None:
    captioned = table(COLUMNS, ROWS, "bytes of a step & more")
    assert repr(captioned).startswith("bytes of a step & more:\nmethod ")
    assert ">bytes of a step &amp; more</caption>" in captioned._repr_html_()


def test_it_is_displayed_immediately(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(COLUMNS, ROWS)
    assert "1.0 MiB" in capsys.readouterr().out


def test_a_row_of_another_length_raises() -> None:
    with pytest.raises(ValueError, match="a row of 2 values for 3 columns"):
        table(COLUMNS, [("ring", 1)])
