"""An exercise is declared and combined with its hidden half."""

from __future__ import annotations

import pytest

from autograder.exercise import OnRanks
from tests.autograder.attempts import HIDDEN, VISIBLE


def test_an_invalid_declaration_is_refused():
    def declared(cases, points=1):
        nothing = lambda *_: None  # noqa: E731
        return OnRanks(points=points, cases=cases, inputs=nothing, drive=nothing)

    with pytest.raises(ValueError, match="visible case"):
        declared((HIDDEN,))
    with pytest.raises(ValueError, match="share a name"):
        declared((VISIBLE, VISIBLE))
    with pytest.raises(ValueError, match="points"):
        declared((VISIBLE,), points=0)
    with pytest.raises(ValueError, match=r"no hidden half: load it with exercises\.load"):
        declared((VISIBLE,)).expect(VISIBLE, [0, 0])
