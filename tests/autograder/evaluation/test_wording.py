"""Text of student code in a verdict is the same in every run."""

from __future__ import annotations

import pytest

from autograder.evaluation.wording import deterministic


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
