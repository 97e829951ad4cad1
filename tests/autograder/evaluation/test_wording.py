"""Text of student code in a verdict is the same in every run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from autograder.evaluation.wording import deterministic, with_cells
from shardlab.display import source


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<object at 0x7f3a91c2d0>", "<object at 0x…>"),
        ("[127.0.0.1]:43215: reset", "[127.0.0.1:…: reset"),
        ("pid 4711 of port=80", "pid … of port=…"),
        ("/tmp/ipykernel_77/1.py and /tmp/tmpx8_f/a", "/tmp/…/1.py and /tmp/…/a"),
        (
            "1763741234.12 s, 1,234,567 bytes, element 123456",
            "… s, 1,234,567 bytes, element 123456",
        ),
        ("0.2727272727272727, -3.5 and 12.123456", "0.272727…, -3.5 and 12.123456"),
        ("half \ud800, bell \x07", "half ?, bell \ufffd"),
        ("\x1b[1;31mred\x1b[0m\x1b[K", "red"),
    ],
)
def test_text_is_made_deterministic(text, expected):
    assert deterministic(text) == expected


def test_a_line_that_a_rank_has_described_is_named_by_its_cell(monkeypatch):
    known = {"/tmp/ipykernel_1/2.py": ("Cell", "In[5]")}
    shell = SimpleNamespace(compile=SimpleNamespace(format_code_name=known.get))
    monkeypatch.setattr(source, "_shell", lambda: shell)
    assert with_cells("x  [/tmp/ipykernel_1/2.py, line 3: y]") == "x  [cell 5, line 3: y]"
