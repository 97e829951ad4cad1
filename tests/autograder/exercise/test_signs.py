"""Signs detect a mistake in calls, memory and errors, and say where it was made."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from autograder.exercise import Attempt, BudgetUsage, Case, Finding
from autograder.exercise.form import Sign
from autograder.exercise.signs import (
    calls_closed_function,
    expensive_calls,
    half_precision,
    is_over,
    keeps_growing,
    never_waited,
    no_barrier,
    on_each_call,
    on_each_rank,
    over_budget,
    raises,
)
from autograder.guest.closed_modules import CLOSED
from shardlab.errors import RankError
from tests.autograder.attempts import attempt, call, run_of

FAILED = RankError("rank 1 failed", rank=1, kind="ValueError", message="no\n  chunk 3")


def texts(sign: Sign, made: Attempt) -> tuple[str, str] | None:
    """(for a visible case, for a hidden one)"""
    found = sign(made)
    return found and (found.text(hidden=False), found.text(hidden=True))


def called(*ops: str, rank: int = 1, **changes: Any) -> Attempt:
    return attempt(run=run_of([dataclasses.replace(call(op, rank), **changes) for op in ops]))


def test_a_sign_that_reads_an_unknown_value_is_an_error_where_it_is_declared() -> None:
    with pytest.raises(TypeError, match="misspelled reads 'ouput': a sign reads output, rank,"):

        @on_each_rank
        def misspelled(ouput: Any) -> None:
            return None

    with pytest.raises(TypeError, match="of_a_rank reads 'rank': a sign reads call, case, attempt"):

        @on_each_call
        def of_a_rank(rank: int) -> None:
            return None


def sent(*used: int, **more: Any) -> Attempt:
    limits = (100,) * len(used)
    return attempt(spent=[BudgetUsage("sends", used, limits, (0,) * len(used))], **more)


# ---- outputs and calls


@on_each_rank
def returns_none(output: Any, rank: int, attempt: Attempt) -> Any:
    return ("returns nothing", "None") if output is None else None


def test_the_first_rank_with_the_mistake_is_named() -> None:
    assert texts(returns_none, attempt(outputs=(1, None))) == (
        "rank 1 returns nothing (None)",
        "a rank returns nothing",
    )
    assert texts(returns_none, attempt()) is None
    assert texts(returns_none, attempt(outputs=(1, None), error=FAILED)) is None


def test_one_process_is_not_called_a_rank() -> None:
    alone = attempt(Case("one process", 1), outputs=(None,))
    assert texts(returns_none, alone) == (
        "your answer returns nothing (None)",
        "your answer returns nothing",
    )


def test_a_call_is_named_with_its_line_also_if_a_rank_failed() -> None:
    @on_each_call
    def gathers(call: Any, attempt: Attempt) -> Any:
        return "gathers" if call.op == "all_gather" else None

    made = called("send", "all_gather")
    assert texts(gathers, made) == ("rank 1 gathers (cell 5, line 3)", "a rank gathers")
    assert texts(gathers, dataclasses.replace(made, error=FAILED)) is not None
    assert texts(gathers, called("send")) is None
    assert texts(gathers, dataclasses.replace(made, run=None)) is None


@pytest.mark.parametrize(
    ("sign", "made", "says"),
    [
        (never_waited, called("send", waited=False), "starts a send with isend and never waits"),
        (never_waited, called("recv", waited=False), "starts a receive with irecv and never"),
        (never_waited, called("all_reduce", waited=False), "all_reduce with async_op=True and nev"),
        (never_waited, called("send", "recv"), None),
        (half_precision, called("send", dtype="bfloat16"), "sends bfloat16: "),
        (half_precision, called("send", dtype="float64"), None),
        (no_barrier, called("send", "barrier"), "calls barrier, which is not needed"),
        (no_barrier, called("all_reduce"), None),
        (keeps_growing, attempt(outputs=({"grows": ["2 kB"]}, {})), "keeps something of every"),
        (keeps_growing, attempt(outputs=({"grows": []}, "no dict")), None),
    ],
)
def test_rules(sign: Sign, made: Attempt, says: str | None) -> None:
    found = texts(sign, made)
    assert found is None if says is None else found and says in found[0] and says in found[1]


# ---- errors


def test_an_error_is_recognized_by_its_kind_and_message() -> None:
    failed = attempt(error=FAILED)
    assert texts(raises("^ValueError: no", "gives no chunk"), failed) == (
        "rank 1 gives no chunk",
        "a rank gives no chunk",
    )
    assert texts(raises("^TypeError", "gives no chunk"), failed) is None
    assert texts(raises("ValueError", "gives no chunk"), attempt()) is None


def test_an_error_may_be_quoted_and_attributed_to_another() -> None:
    found = raises("ValueError", "fails", who="the loop", quoted=True)(attempt(error=FAILED))
    assert found == Finding("the loop", "fails", "no chunk 3", "the loop", quotes=True)


def test_a_closed_function_is_named_for_visible_cases_only() -> None:
    error = RankError("", rank=0, kind="PermissionError", message=f"torch.fx.trace {CLOSED}")
    assert texts(calls_closed_function, attempt(error=error)) == (
        f"your answer calls torch.fx.trace, which {CLOSED}",
        f"your answer calls {CLOSED.removeprefix('is ')}",
    )
    assert texts(calls_closed_function, attempt(error=FAILED)) is None


# ---- budgets


def test_ranks_over_a_budget_the_furthest_first() -> None:
    assert is_over(sent(120, 100)) == [0]
    assert is_over(sent(120, 300)) == [1, 0]
    assert is_over(sent(120, 300), "memory") == []
    assert is_over(sent(120, 300, error=FAILED)) == []


def test_a_rank_over_its_budget_is_told_what_is_enough() -> None:
    sign = over_budget("sent by a rank", "sends twice")
    assert texts(sign, sent(100, 1200)) == (
        "rank 1 sends twice (1,200 bytes, 100 are enough)",
        "a rank sends twice",
    )
    assert texts(sign, sent(100, 100)) is None
    assert texts(over_budget("memory", "keeps all"), sent(100, 1200)) is None


def test_the_most_expensive_kind_of_call_is_named() -> None:
    sign = expensive_calls({"all_gather": "gathers", "send": "sends"})
    large = dataclasses.replace(call("all_gather", 1), bytes=100, source="line 9")
    of_another_rank = dataclasses.replace(call("send", 0), bytes=1000)
    calls = [of_another_rank, call("send", 1), call("send", 1), large]
    over = dataclasses.replace(sent(100, 108), run=run_of(calls))
    assert texts(sign, over) == ("rank 1 gathers (line 9)", "a rank gathers")
    assert texts(expensive_calls({"send": "sends"}), over) is None
    assert texts(sign, dataclasses.replace(over, spent=sent(100, 100).spent)) is None
