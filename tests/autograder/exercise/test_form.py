"""An exercise is declared and combined with its hidden half."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from autograder.exercise import Budget, Case, Limit, OnRanks
from autograder.exercise.hidden import HiddenHalf
from tests.autograder.attempts import HIDDEN, VISIBLE


def declared(cases: tuple[Case, ...] = (VISIBLE,), points: float = 1, **more: Any) -> OnRanks:
    nothing = lambda *_: None  # noqa: E731
    return OnRanks(points=points, cases=cases, inputs=nothing, drive=nothing, **more)


def test_an_invalid_declaration_is_refused() -> None:
    with pytest.raises(ValueError, match="visible case"):
        declared((HIDDEN,))
    with pytest.raises(ValueError, match="share a name"):
        declared((VISIBLE, VISIBLE))
    with pytest.raises(ValueError, match="points"):
        declared(points=-1)
    with pytest.raises(ValueError, match=r"no hidden half: load it with exercises\.load"):
        declared().expect(VISIBLE, [0, 0])


def test_the_hidden_half_adds_its_cases_facts_and_closed_modules() -> None:
    half = SimpleNamespace(CASES=[Case("3 ranks", 3)], facts=lambda case: {"n": case.world_size})
    public = declared(closed=("own",))
    both = public.with_hidden_half(HiddenHalf(half), "ring", "answer", ("of the lab",))
    assert (both.name, both.closed) == ("ring.answer", ("of the lab", "own"))
    assert [(case.name, case.hidden) for case in both.cases] == [
        ("2 ranks", False),
        ("3 ranks", True),
    ]
    assert [case.params for case in both.cases] == [{"n": 2}, {"n": 3}]


def test_a_limit_is_computed_once_for_each_case_where_it_is_declared() -> None:
    computed = []

    def limit(case: Case) -> Limit | None:
        computed.append(case.name)
        return Limit(1) if case.world_size == 2 else None

    here = Budget("here", lambda run: [0, 0], limit)
    hidden = Budget("hidden", lambda run: [0, 0])
    cases = (VISIBLE, Case("3 ranks", 3))
    exercise = declared(cases=cases, budgets=(here, hidden), memory=True).with_hidden_half(
        HiddenHalf(SimpleNamespace(LIMITS={"hidden": lambda case: None})), "ring", "answer", ()
    )
    for _ in range(2):
        assert [exercise.limit_of(here, case) for case in cases] == [Limit(1), None]
        assert [exercise.limit_of(hidden, case) for case in cases] == [None, None]
        # Recording is slow, so only where a budget applies.
        assert [exercise.records_memory(case) for case in cases] == [True, False]
    assert computed == ["2 ranks", "3 ranks"]


@pytest.mark.parametrize(
    ("allows", "expected"),
    [(None, False), ((), True), (("send",), True), (("send", "recv", "barrier"), False)],
)
def test_point_to_point(allows: tuple[str, ...] | None, expected: bool) -> None:
    exercise = declared(allows=None if allows is None else frozenset(allows))
    assert exercise.is_point_to_point == expected
