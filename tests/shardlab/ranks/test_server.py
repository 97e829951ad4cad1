"""What the rank server imports before it forks."""

from __future__ import annotations

import sys

import pytest

from shardlab.ranks import server


def test_a_module_that_cannot_be_imported_does_not_keep_others_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    server.preload_ahead("no_such_module", "colorsys")
    assert "colorsys" in sys.modules
