"""The checker's process runs no student code, and failures of the machine cost no points."""

from __future__ import annotations

import os
import pickle
import time

import cloudpickle
import pytest
import torch

from autograder.evaluation import trial
from autograder.evaluation.decide import decide
from autograder.evaluation.trial import InfrastructureError
from autograder.exercise import Case
from autograder.guest.closed_modules import CLOSED
from shardlab.ranks.trust import Trust
from tests.autograder import exercise_halves
from tests.autograder.exercise_halves import on_ranks

pytestmark = pytest.mark.ranks


TWO_RANKS = (Case("2 ranks", 2),)


def echo(cases=TWO_RANKS, **more):
    return on_ranks(
        name="trust.echo",
        points=1,
        cases=cases,
        inputs=lambda case, rng: [torch.tensor(rank) for rank in range(case.world_size)],
        drive=lambda subject, given, case: subject(given),
        reference=lambda case, inputs: inputs,
        **more,
    )


class Bomb:
    """Unpickling it creates a file named after the process."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        code = f"import os; open(os.path.join({self.folder!r}, str(os.getpid())), 'w').close()"
        return exec, (code,)


def test_an_answer_is_unpickled_on_ranks_only(tmp_path):
    verdict = decide(echo(), pickle.dumps(Bomb(tmp_path)), seed=1)
    assert verdict.points == 0.0
    assert os.listdir(tmp_path)
    assert str(os.getpid()) not in os.listdir(tmp_path)


def test_an_output_that_is_not_plain_fails(tmp_path):
    verdict = decide(echo(), cloudpickle.dumps(lambda given: Bomb(tmp_path)), seed=1)
    assert not verdict.passed
    assert str(os.getpid()) not in os.listdir(tmp_path)


@pytest.mark.parametrize("blob", [b"", b"not a pickle", None])
def test_no_answer_earns_nothing(blob):
    verdict = decide(echo(), blob, seed=1)
    assert verdict.points == 0.0
    assert all(case.diagnosis for case in verdict.cases)


def test_a_rank_gets_only_its_own_input():
    def spy(given):
        import gc

        others = [x for x in gc.get_objects() if isinstance(x, torch.Tensor) and x.ndim == 0]
        assert {int(x) for x in others} == {int(given)}
        return given

    verdict = decide(echo(), cloudpickle.dumps(spy), seed=1)
    assert verdict.passed, verdict.headline


def test_a_rank_does_not_get_case_parameters_meant_for_the_checker():
    def spy(given):
        import sys

        frame = sys._getframe()
        while frame.f_code.co_name != "on_rank":
            frame = frame.f_back
        assert dict(frame.f_locals["case"].params) == {"cap": 3}
        return given

    cases = (Case("2 ranks", 2, {"cap": 3, "answer": 4}),)
    exercise = echo(cases, kept_from_ranks=frozenset({"answer"}))
    verdict = decide(exercise, cloudpickle.dumps(spy), seed=1)
    assert verdict.passed, verdict.headline


def test_a_forged_function_name_does_not_leak_a_hidden_cases_inputs():
    def smuggle(given):
        raise PermissionError(f"input_{int(given) + 7000} {CLOSED}")

    cases = (*TWO_RANKS, Case("another", 2, hidden=True))
    verdict = decide(echo(cases), cloudpickle.dumps(smuggle), seed=1)
    shown, hidden = (case.diagnosis for case in verdict.cases)
    assert "calls input_700" in shown
    assert "ready-made solution" in hidden
    assert "700" not in hidden


def test_an_answer_that_is_always_equal_does_not_fool_the_checker():
    class Same(torch.Tensor):
        def __eq__(self, other):
            return True

    def answer(given):
        return (given + 1).as_subclass(Same)

    assert not decide(echo(), cloudpickle.dumps(answer), seed=1).passed


def test_a_crash_fails_its_case_and_the_next_one_runs():
    def crash_on_three(given):
        import torch.distributed as dist

        if dist.get_world_size() == 3:
            os._exit(3)
        return given

    cases = (Case("3 ranks", 3), Case("2 ranks", 2))
    verdict = decide(echo(cases), cloudpickle.dumps(crash_on_three), seed=1)
    assert [case.passed for case in verdict.cases] == [False, True]
    assert verdict.points == 0.5


@pytest.mark.parametrize(("pause_s", "violation"), [(0.0, "resource limit"), (0.01, "")])
def test_an_endless_answer_times_out(pause_s, violation):
    def never_ends(given):
        while True:
            if pause_s:
                time.sleep(pause_s)

    verdict = decide(echo(timeout_s=2.0), cloudpickle.dumps(never_ends), seed=1)
    assert verdict.points == 0.0
    assert verdict.cases[0].mistake == "did not finish within its time limit"
    assert verdict.violation == violation


def test_after_a_hang_a_students_check_skips_the_other_cases():
    def wait_for_each_other(given):
        import torch.distributed as dist

        dist.recv(given, 1 - dist.get_rank())

    cases = (Case("2 ranks", 2), Case("2 ranks again", 2))
    blob = cloudpickle.dumps(wait_for_each_other)
    verdict = decide(echo(cases), blob, seed=1, trust=Trust.OWN)
    assert "call recv first and wait for each other" in verdict.cases[0].diagnosis
    assert verdict.cases[1].diagnosis == "fix the case above first"


def test_disabling_the_recorder_is_detected():
    def silence(given):
        import torch.distributed as dist

        from shardlab.trace import measure

        measure.recorder.enabled = False
        dist.all_reduce(torch.ones(2**18))
        return given

    p2p_only = echo(allows=frozenset({"send", "recv"}))
    verdict = decide(p2p_only, cloudpickle.dumps(silence), seed=1)
    assert verdict.cases[0].mistake == "moved bytes that no recorded call explains"
    assert verdict.violation == "tampering"
    assert verdict.points == 0.0


def test_data_passed_through_the_rendezvous_store_is_tampering():
    def pass_it_on(given):
        import torch.distributed as dist

        store = dist.distributed_c10d._get_default_store()
        store.set(str(dist.get_rank()), "x" * 2**17)
        store.wait(["0", "1"])
        return given

    verdict = decide(echo(), cloudpickle.dumps(pass_it_on), seed=1)
    assert verdict.cases[0].mistake == "passed data through the rendezvous store"
    assert verdict.violation == "tampering"


def test_process_groups_are_not_mistaken_for_tampering():
    def in_groups(given):
        import torch.distributed as dist

        for ranks in ([0], [0, 1], [1], None):
            group = dist.new_group(ranks)
            if ranks is None or dist.get_rank() in ranks:
                dist.all_reduce(torch.ones(3), group=group)
                dist.destroy_process_group(group)
        return given

    assert decide(echo(), cloudpickle.dumps(in_groups), seed=1).passed


def test_a_forbidden_call_is_a_mistake_not_tampering():
    def short_cut(given):
        import torch.distributed as dist

        dist.all_reduce(torch.ones(2**10))
        return given

    p2p_only = echo(allows=frozenset({"send", "recv"}))
    verdict = decide(p2p_only, cloudpickle.dumps(short_cut), seed=1)
    assert verdict.cases[0].mistake == "calls all_reduce: this task allows only send and recv"
    assert verdict.violation == ""
    assert verdict.points == 0.0


def test_a_failure_of_the_machine_is_an_infrastructure_error(monkeypatch):
    def no_more_processes(*args, **kwargs):
        raise OSError("Resource temporarily unavailable")

    monkeypatch.setattr(trial.RankSet, "run", no_more_processes)
    with pytest.raises(InfrastructureError, match=r"trust\.echo, 2 ranks: Resource"):
        decide(echo(), cloudpickle.dumps(lambda given: given), seed=1)


def test_the_same_failure_gives_the_same_verdict():
    """All ranks fail, with an address, a time and a forged file name in their messages."""

    def fail(given):
        import torch.distributed as dist

        stolen = compile("def f(x):\n    raise ValueError(x)", stolen_from, "exec")
        names = {}
        exec(stolen, names)
        if dist.get_rank() == 0:
            time.sleep(0.02)
        names["f"](f"{object()} at {time.time()}")

    stolen_from = exercise_halves.__file__
    case = (Case("3 ranks", 3),)
    verdicts = [decide(echo(case), cloudpickle.dumps(fail), seed=1) for _ in range(2)]
    assert verdicts[0].to_plain() == verdicts[1].to_plain()
    assert (
        verdicts[0]
        .cases[0]
        .diagnosis.startswith("rank 0 failed: ValueError: <object object at 0x…> at …")
    )
    assert "exercise_halves.py, line 2" in verdicts[0].cases[0].diagnosis
    assert "Both halves of an exercise" not in str(verdicts[0])


def test_an_output_that_is_too_large_is_refused():
    cases = (Case("2 ranks", 2),)
    blob = cloudpickle.dumps(lambda given: torch.zeros(2**20))
    verdict = decide(echo(cases, output_bytes=2**21), blob, seed=1)
    assert "the limit is 1,048,576" in verdict.cases[0].diagnosis
    assert verdict.violation == "resource limit"


def test_each_attempt_is_passed_to_the_callback():
    attempts = []
    decide(echo(), cloudpickle.dumps(lambda given: given), seed=1, on_attempt=attempts.append)
    assert [attempt.case.name for attempt in attempts] == ["2 ranks"]
    assert attempts[0].run.traffic.sent_bytes.shape == (2, 2)
