"""Lab 06: hsdp_bytes against a real HSDP run, and its named mistakes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autograder import exercises
from autograder.evaluation.judge import judge
from autograder.exercise import Attempt
from autograder.exercises.lab06_fsdp_in_practice.hidden import hsdp_bytes
from shardlab import launch
from shardlab.estimate import traffic
from tests.submissions.deciding import inputs_of

LAB = "06_fsdp_in_practice"
HSDP_BYTES = next(each for each in exercises.of_lab(LAB) if each.answer == "hsdp_bytes")


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_one_row_is_fsdp_and_one_column_is_ddp(n):
    fsdp, ddp = hsdp_bytes.right(1000, 1, n, 4), hsdp_bytes.right(1000, n, 1, 4)
    zero3 = traffic.sent_bytes("zero3", 1000, n)[0]
    assert (fsdp["within"], fsdp["across"]) == (pytest.approx(zero3), 0)
    all_reduced = traffic.sent_bytes("ddp", 1000, n)[0]
    assert (ddp["within"], ddp["across"]) == (0, pytest.approx(all_reduced))


def step_on_a_mesh():
    """Two steps on a 2 x 2 mesh: with reshard_after_forward, and without."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    for reshard in (True, False):
        layers = [nn.Linear(8, 8, bias=False) for _ in range(3)]
        for layer in layers:
            fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
        dist.barrier()  # separates the two steps
        nn.Sequential(*layers)(torch.ones(1, 8)).sum().backward()


@pytest.mark.ranks
def test_the_formula_matches_what_fully_shard_sends_on_a_2_by_2_mesh():
    calls = launch(step_on_a_mesh, world_size=4, quiet=True).calls
    for rank in range(4):
        own = [call for call in calls if call.rank == rank]
        second = [i for i, call in enumerate(own) if call.op == "barrier"][1]
        for reshard, step in ((True, own[:second]), (False, own[second:])):
            expected = hsdp_bytes.right(3 * 64, 2, 2, 4, reshard)
            assert sent_bytes(step) == expected


def sent_bytes(calls):
    """Bytes that rings send in these calls: (n - 1)/n of a whole tensor, twice in an all-reduce."""
    sent = {"within": 0.0, "across": 0.0}
    for call in calls:
        n = len(call.group)
        if call.op == "all_gather_single":
            sent["within"] += (n - 1) * call.bytes
        elif call.op == "reduce_scatter_single":
            sent["within"] += (n - 1) / n * call.bytes
        elif call.op == "all_reduce":
            sent["across"] += 2 * (n - 1) / n * call.bytes
    return sent


def diagnosis_of(exercise, case, answers):
    inputs = inputs_of(exercise, case)
    attempt = Attempt(case, inputs, exercise.expect(case, inputs), [answers(inputs[0])], None, None)
    return judge(exercise, attempt).result.diagnosis


@pytest.mark.parametrize("message", hsdp_bytes.MISTAKES)
def test_each_mistake_in_the_bytes_is_named(message):
    """In the case with several sizes, fp32, and parameters that stay whole."""
    mistake, case = hsdp_bytes.MISTAKES[message], HSDP_BYTES.cases[1]
    for wrong in mistake if isinstance(mistake, tuple) else (mistake,):
        diagnosis = diagnosis_of(HSDP_BYTES, case, lambda asked, f=wrong: [f(*q) for q in asked])
        assert message in diagnosis


def test_an_answer_of_the_wrong_form_is_described():
    case = HSDP_BYTES.cases[0]
    assert "should give a dict" in diagnosis_of(HSDP_BYTES, case, lambda asked: [(1, 2)] * 4)
    assert "lacks 'across'" in diagnosis_of(
        HSDP_BYTES, case, lambda asked: [{"within": hsdp_bytes.within(*q)} for q in asked]
    )
