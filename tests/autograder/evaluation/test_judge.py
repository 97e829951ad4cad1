"""The judge and the points, on constructed attempts without ranks."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from autograder.evaluation import judge as judge_module
from autograder.evaluation.judge import is_unwritten
from autograder.evaluation.verdict import CaseResult, Verdict
from autograder.exercise import BudgetUsage, Finding
from autograder.exercise.budget import Budget, Limit
from autograder.exercise.signs import never_waited
from shardlab.errors import DeadlockError, RankError, RunTimeout, Waiting
from shardlab.ranks.trust import Trust
from shardlab.run import Call
from shardlab.run.live_memory import Memory, unknown_memory
from tests.autograder.attempts import HIDDEN, attempt, call, exercise, run_of


def judge(exercise, attempt):
    return judge_module.judge(exercise, attempt).result


def test_right_outputs_pass():
    result = judge(exercise(), attempt())
    assert result.passed
    assert result.diagnosis == ""
    assert result.sent_bytes == (10, 10)


def test_one_wrong_rank_fails():
    result = judge(exercise(), attempt(outputs=(1, 2)))
    assert not result.passed
    assert result.diagnosis == "rank 1 gives the wrong number (2, expected 1)"


def test_no_output_fails():
    assert not judge(exercise(), attempt(outputs=(None, None))).passed


def test_a_broken_rule_fails_even_with_correct_outputs():
    unsent = dataclasses.replace(call("send", rank=1), waited=False)
    waiting = exercise(rules=(never_waited,))
    result = judge(waiting, attempt(run=run_of([call("send"), unsent])))
    assert result.outputs_right
    assert not result.passed
    assert result.diagnosis.startswith("rank 1 starts a send with isend and never waits for it: ")
    assert judge(waiting, attempt(run=run_of([call("send")]))).passed


def test_a_rule_that_raises_on_wrong_outputs_is_ignored():
    def reads_a_list(attempt):
        return "is empty" if not attempt.outputs[1][0] else None

    strict = exercise(rules=(reads_a_list,))
    result = judge(strict, attempt(outputs=(1, 2)))
    assert result.diagnosis == "rank 1 gives the wrong number (2, expected 1)"
    with pytest.raises(TypeError):  # with right outputs it is a bug of the rule's
        judge(strict, attempt())


def test_a_forbidden_call_fails_even_with_correct_outputs():
    made = attempt(run=run_of([call("send"), call("all_reduce", rank=1)]))
    result = judge(exercise(allows=frozenset({"send", "recv"})), made)
    assert result.outputs_right
    assert not result.passed
    assert result.diagnosis == (
        "rank 1 calls all_reduce: this task allows only send and recv (cell 5, line 3)"
    )
    alone = judge(exercise(allows=frozenset()), made)
    assert alone.mistake == "calls send: this task needs no communication"


@pytest.mark.parametrize(
    ("used", "words"), [((120, 90), "over its budget: sends"), ((90, 2), "another path")]
)
def test_a_budget_has_an_upper_and_a_lower_bound(used, words):
    spent = BudgetUsage("sends ≤ 1.01 × ideal bytes per rank", used, (101, 101), (80, 80))
    result = judge(exercise(), attempt(spent=[spent]))
    assert result.outputs_right
    assert not result.passed
    assert words in result.diagnosis


def test_too_few_calls_are_not_called_bytes():
    spent = BudgetUsage("a call for each bucket", (2, 3), (3, 3), (3, 3), "collectives", "calls")
    diagnosis = judge(exercise(), attempt(spent=[spent])).diagnosis
    wanted = "does not keep its budget: a call for each bucket (2 calls, expected at least 3)"
    assert diagnosis == f"rank 0 {wanted}"


def test_recorded_calls_and_the_wire_must_agree():
    p2p = exercise(allows=frozenset({"send", "recv"}))

    def sent(n_bytes, *calls):
        return judge(p2p, attempt(run=run_of(calls, ((0, n_bytes), (0, 0)))))

    assert sent(4, call("send")).passed
    for result, words in (
        (sent(10_000, call("send")), "moved bytes that no recorded call explains"),
        (sent(4, *[call("send")] * 100), "recorded sends that were never on the wire"),
    ):
        assert result.mistake == words
        assert result.violation == "tampering"
    forbidden = sent(10_000, call("send"), call("all_reduce"))
    assert forbidden.violation == ""
    assert "calls all_reduce" in forbidden.mistake


@pytest.mark.parametrize("seen", [None, 0, 1, 12])
def test_a_collective_on_the_wire_must_be_recorded(seen):
    sends = [call("send"), call("send", rank=1)]
    p2p = exercise(allows=frozenset({"send", "recv"}))
    result = judge(p2p, attempt(run=run_of(sends, collectives=seen)))
    assert result.passed == (not seen)
    assert result.violation == ("tampering" if seen else "")
    assert ("collective" in result.diagnosis) == bool(seen)
    recorded = run_of([*sends, call("all_reduce")], collectives=seen)
    assert judge(p2p, attempt(run=recorded)).violation == ""
    assert judge(exercise(), attempt(run=recorded)).passed


def memory_usage(inside, outside):
    zero = (0, 0)
    return [
        BudgetUsage("live bytes", (inside, 5), (10, 10), zero, "live"),
        BudgetUsage(
            *("the process", (5, outside), (10, 10), zero, "seen"),
            from_outside=True,
            contradicts="uses more than its recorded tensors",
        ),
        BudgetUsage("sends", (99, 5), (10, 10), zero),
    ][: 2 if inside < 11 else 3]


@pytest.mark.parametrize(
    ("inside", "outside", "passed", "is_right"),
    [(5, 5, True, True), (5, 50, False, False), (50, 50, False, True), (50, 5, False, True)],
)
def test_unrecorded_memory_costs_the_points_of_all_cases(inside, outside, passed, is_right):
    result = judge(exercise(), attempt(spent=memory_usage(inside, outside)))
    assert (result.passed, result.record_is_right, result.violation) == (passed, is_right, "")
    assert ("recorded tensors" in result.diagnosis) == (not is_right)
    small = CaseResult("small", False, 3, passed=True)
    assert bool(Verdict("lab.answer", 4.0, (small, result), seed=1).points) == is_right
    # Page counts vary from run to run: they must not be in a verdict.
    assert not any(spent.from_outside for spent in result.spent)


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_missing_record_of_memory_is_not_a_record_of_zero_bytes(is_recorded):
    run = run_of()
    run._memory = Memory([dataclasses.replace(unknown_memory(), is_recorded=is_recorded)] * 2)
    budget = Budget("live", lambda run: [0, 0], lambda case: Limit(1))
    result = judge(exercise(memory=True, budgets=(budget,)), attempt(run=run))
    assert result.passed == result.record_is_right == is_recorded
    assert ("lost its record" in result.diagnosis) == (not is_recorded)


def test_a_case_fails_if_a_budget_was_not_measured():
    made = dataclasses.replace(attempt(), unmeasured=("process memory ≤ tensors + overhead",))
    result = judge(exercise(), made)
    assert not result.passed
    assert not result.record_is_right
    assert "in the calling thread" in result.diagnosis


@pytest.mark.parametrize(
    ("kind", "message", "violation"),
    [
        ("SIGKILL", "", "resource limit"),
        ("MemoryError", "", "resource limit"),
        ("OSError", "[Errno 28] No space left on device: 'x'", "resource limit"),
        ("Forged", "it sent an unknown message", "tampering"),
        ("ValueError", "no", ""),
    ],
)
def test_resource_limits_and_tampering_are_reported(kind, message, violation):
    error = RankError("rank 1 failed", rank=1, kind=kind, message=message)
    assert judge(exercise(), attempt(error=error)).violation == violation


@pytest.mark.parametrize(("cpu_s", "violation"), [(0.1, ""), (19.5, "resource limit")])
def test_a_timeout_is_a_resource_limit_only_if_it_used_the_processor(cpu_s, violation):
    assert judge(exercise(), attempt(error=RunTimeout("20 s", cpu_s=cpu_s))).violation == violation


def test_a_rank_that_computes_at_the_end_is_at_a_limit_however_little_was_measured() -> None:
    error = RunTimeout("20 s", table=(Waiting(0, "computing", "", (), "line 3"),))
    assert judge(exercise(), attempt(error=error)).violation == "resource limit"


def test_an_answer_that_cannot_be_called_is_reported_without_a_line():
    facts = {"rank": 0, "kind": "TypeError", "message": "f() takes 1 argument"}
    none = RankError("rank 0 failed: TypeError", **facts)
    says = judge(exercise(), attempt(error=none)).diagnosis
    assert says.startswith("rank 0: the check cannot call the answer")
    facts["message"] = "function GatheredLinearBackward returned an incorrect number of gradients"
    says = judge(exercise(), attempt(error=RankError("", **facts))).diagnosis
    assert says.startswith("rank 0: autograd cannot use what the answer's backward returned")
    own = RankError("rank 0 failed  [cell 5, line 3]", **facts, source="cell 5, line 3")
    assert judge(exercise(), attempt(error=own)).diagnosis == own.headline


def test_a_tag_that_nobody_sends_is_named():
    made = {"bytes": 4, "group": (0, 1), "start_s": 0.0, "source": "cell 5, line 3", "seq": 1}
    tensor = {"dtype": "float32", "shape": (1,), "offset": 0, "storage_numel": 1}
    sent = Call(0, "send", peer=1, end_s=0.1, tag=0, **made, **tensor)
    waits = Call(1, "recv", peer=0, end_s=None, tag=7, **made, **tensor)
    error = deadlock("recv", "recv")
    error.run = run_of([sent, waits])
    says = judge(exercise(), attempt(error=error)).diagnosis
    assert says.startswith("rank 1 waits for a tag that its neighbor does not send")
    assert "under tag 7, but rank 0 sends to it under tag 0; cell 5, line 3" in says


def test_an_incomplete_record_is_not_diagnosed():
    never_called = exercise(signs=(lambda _: pytest.fail("called"),))
    error = RankError("rank 0 failed: too many calls", rank=0, kind="TooLarge", message="too many")
    result = judge(never_called, attempt(error=error))
    assert (result.diagnosis, result.violation) == (
        "rank 0 failed: too many calls",
        "resource limit",
    )


def test_outputs_far_larger_than_expected_are_not_diagnosed():
    never_called = exercise(signs=(lambda _: pytest.fail("called"),))
    assert not judge(never_called, attempt(outputs=(1, np.zeros(1_000_000)))).passed


def test_the_first_sign_that_matches_wins():
    found = Finding("rank 1", "forgot to divide", "2, expected 1")
    signs = (lambda _: None, lambda _: found, lambda _: pytest.fail("called"))
    declared = exercise(signs=signs)
    assert judge(declared, attempt(outputs=(1, 2))).diagnosis == (
        "rank 1 forgot to divide (2, expected 1)"
    )
    hidden = judge(declared, attempt(case=HIDDEN, outputs=(1, 2)))
    assert hidden.diagnosis == "a rank forgot to divide"
    assert hidden.instructor_note == "rank 1 forgot to divide (2, expected 1)"


def test_an_output_of_an_unexpected_form_does_not_break_the_checker():
    signs = (lambda attempt: attempt.outputs[1]["tensor"],)
    result = judge(exercise(signs=signs), attempt(outputs=(1, "forged")))
    assert result.diagnosis == "rank 1 should give a number (it is a str)"


def test_a_sign_that_raises_logs_no_warning(caplog):
    def raises(attempt):
        return attempt.outputs[0]["values"]

    assert judge(exercise(signs=(raises,)), attempt(outputs=(3, 1))).diagnosis
    assert [record for record in caplog.records if record.levelname != "INFO"] == []


def test_evidence_is_shortened():
    signs = (lambda attempt: Finding("rank 1", "is long", "x" * 10_000),)
    assert len(judge(exercise(signs=signs), attempt(outputs=(1, 2))).diagnosis) < 400


def test_a_passing_case_is_not_diagnosed():
    assert judge(exercise(signs=(lambda _: pytest.fail("called"),)), attempt()).passed


@pytest.mark.parametrize("kind", ["SIGABRT", "SIGTERM", "signal 37", "Forged"])
def test_a_verdict_does_not_depend_on_which_rank_failed_first(kind):
    results = {
        judge(exercise(), attempt(error=error, trust=Trust.UNTRUSTED))
        for error in (
            RankError("rank 0 …  [line 3]", rank=0, kind=kind),
            RankError("rank 1 …", rank=1, kind=kind),
        )
    }
    assert len(results) == 1
    assert results.pop().diagnosis.startswith("a rank ")


def test_a_verdict_does_not_depend_on_how_memory_ran_out():
    results = {
        judge(exercise(), attempt(error=error, trust=Trust.UNTRUSTED))
        for error in (
            RankError("rank 0 …", rank=0, kind="SIGKILL"),
            RankError("rank 1 …", rank=1, kind="MemoryError"),
            RankError("rank 1 …", rank=1, kind="RuntimeError", message="can't allocate memory: 4"),
        )
    }
    assert len(results) == 1
    assert results.pop().violation == "resource limit"


@pytest.mark.parametrize("kind", ["SIGSEGV", "exit", "ValueError"])
def test_a_rank_that_failed_by_itself_is_named(kind):
    error = RankError("rank 1 failed  [line 3]", rank=1, kind=kind)
    result = judge(exercise(), attempt(error=error, trust=Trust.UNTRUSTED))
    assert result.diagnosis == error.headline


def deadlock(*calls):
    table = tuple(
        Waiting(r, "waiting", f"{op} to rank 1", (1,), "cell 5, line 3: code")
        for r, op in enumerate(calls)
    )
    return DeadlockError("deadlock: ranks 0 → 1 → 0", table=table, cycle=(0, 1))


@pytest.mark.parametrize(
    ("error", "visible", "hidden"),
    [
        (deadlock("send", "send"), "ranks 0 and 1 call send first", "neighbors call send first"),
        (
            deadlock("recv", "recv"),
            "call recv first",
            "neighbors call recv first and wait for each",
        ),
        (deadlock("send", "recv"), "deadlock: ranks 0 → 1 → 0", "the ranks make calls that do not"),
        (RunTimeout("the run took 20 s"), "the run took 20 s", "the run did not finish"),
        (
            RankError("rank 1 failed: IndexError: 987", rank=1, kind="IndexError"),
            "rank 1 failed: IndexError: 987",
            "a rank stopped with IndexError",
        ),
        (
            RankError("rank 1 was killed by SIGABRT", rank=1, kind="SIGABRT"),
            "killed by SIGABRT",
            "a rank stopped with SIGABRT",
        ),
        (
            RankError("rank 0 failed: N987", rank=0, kind="N987"),  # a student's exception class
            "rank 0 failed: N987",
            "a rank stopped with an error",
        ),
        (
            RankError("rank 0 failed: SIG987", rank=0, kind="SIG987"),
            "rank 0 failed: SIG987",
            "a rank stopped with an error",
        ),
    ],
)
def test_errors_are_explained_without_revealing_hidden_inputs(error, visible, hidden):
    assert visible in judge(exercise(), attempt(error=error)).diagnosis
    result = judge(exercise(), attempt(case=HIDDEN, error=error))
    assert result.diagnosis.startswith(hidden)
    assert "987" not in result.diagnosis
    assert not result.passed
    assert not result.outputs_right


def test_stub_is_unwritten():
    def is_stub(kind="NotImplementedError", message="", in_user_code=True):
        facts = {"kind": kind, "message": message, "in_user_code": in_user_code}
        return is_unwritten(attempt(error=RankError("", rank=0, **facts)))

    assert is_stub()
    assert not is_stub("ValueError")
    assert not is_stub(message="convolution_overrideable not implemented")  # raised by torch
    assert not is_stub(in_user_code=False)
    assert not is_unwritten(attempt())
