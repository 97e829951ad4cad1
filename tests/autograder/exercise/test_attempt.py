"""Quotations in a finding are short."""

from __future__ import annotations

from autograder.exercise.attempt import shorten


def test_a_long_error_is_cut_but_keeps_its_line():
    assert (
        shorten("a" * 500 + "  [cell 3, line 2: f(x)]") == "a" * 300 + " …  [cell 3, line 2: f(x)]"
    )
    assert shorten("a" * 500) == shorten("a" * 500 + "  [" + "b" * 500 + "]") == "a" * 300 + " …"
    whole = "a" * 200 + "  [" + "b" * 200 + "]"
    assert shorten(whole) == whole
