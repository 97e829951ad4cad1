"""Lab 02: references against independent counts, and mistakes that no planted answer makes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist

from autograder import exercises
from autograder.evaluation.judge import judge
from autograder.exercise import Attempt, equal
from autograder.exercises.lab02_dp_vs_ddp import bucketed_ddp as public_buckets
from autograder.exercises.lab02_dp_vs_ddp import shared
from autograder.exercises.lab02_dp_vs_ddp.hidden import bucketed_ddp, ddp_step
from autograder.exercises.lab02_dp_vs_ddp.hidden.hub_bytes import right as hub_pairs
from autograder.exercises.lab02_dp_vs_ddp.hidden.ring_bytes import right as ring_pairs
from autograder.exercises.lab02_dp_vs_ddp.hidden.shared import FirstStep
from shardlab import launch, measure
from tests.submissions import planted

LAB = "02_dp_vs_ddp"
HUB_STEP, HUB_BYTES, DDP_STEP, RING_BYTES, BUCKETED_DDP = exercises.of_lab(LAB)
TRAINING = [HUB_STEP, DDP_STEP, BUCKETED_DDP]


def right_attempt(exercise, case):
    inputs = list(exercise.draw(case, np.random.default_rng(3)))
    expected = list(exercise.expect(case, inputs))
    return Attempt(case, inputs, expected, expected, None, None)


# ---- bytes --------------------------------------------------------------------------------------


def test_formulas_agree_with_the_ground_truth():
    """Hub: (N-1)Ψ each way through rank 0, Ψ each way for the others; ring: 2(N-1)/N·Ψ."""
    assert hub_pairs(100, 4) == [(300, 300), (100, 100), (100, 100), (100, 100)]
    assert ring_pairs(100, 4) == [(150, 150)] * 4
    assert hub_pairs(100, 1) == ring_pairs(100, 1) == [(0, 0)]
    assert ring_pairs(1, 1024)[0][0] == pytest.approx(2, rel=1e-3)


@pytest.mark.ranks
def test_formulas_predict_what_real_ranks_send_and_receive():
    def one_of_each(psi):
        parameters = torch.ones(psi // 4)
        rank, world_size = dist.get_rank(), dist.get_world_size()
        with measure("hub"):
            for peer in range(1, world_size):
                if rank == 0:
                    dist.send(parameters, peer)
                    dist.recv(parameters, peer)
                elif rank == peer:
                    dist.recv(parameters, 0)
                    dist.send(parameters, 0)
        with measure("ring"):
            dist.all_reduce(parameters)
        dist.barrier()
        with measure("broadcast"):
            dist.broadcast(parameters, 0)

    psi, n = 2**20, 5
    run = launch(one_of_each, psi, world_size=n)
    for label, pairs in (("hub", hub_pairs(psi, n)), ("ring", ring_pairs(psi, n))):
        block = run.traffic[label]
        measured = np.stack([block.sent_by_rank, block.received_by_rank], axis=1)
        np.testing.assert_allclose(measured, pairs, rtol=0.01)
    tree = [ddp_step.broadcast_peers(rank, n) for rank in range(n)]
    sent = run.traffic["broadcast"].sent_by_rank / psi
    np.testing.assert_allclose(sent, tree, atol=0.01)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 8, 64])
def test_a_broadcast_reaches_every_other_rank_once(world_size):
    reached = [ddp_step.broadcast_peers(rank, world_size) for rank in range(world_size)]
    assert sum(reached) == world_size - 1
    assert reached[0] == int(np.ceil(np.log2(world_size)))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "should give a list (it is None"),
        ([(3_000_000, 3_000_000)], "has the wrong length (length 1, expected 4)"),
        (
            [[750_000, 750_000]] * 4,
            "(at index 0: 750,000 and 750,000, expected 3,000,000 and",
        ),
    ],
)
def test_wrong_pairs_are_explained(answer, message):
    attempt = right_attempt(HUB_BYTES, HUB_BYTES.cases[0])
    got = HUB_BYTES.read(answer)
    assert message in judge(HUB_BYTES, replace(attempt, outputs=[[got]])).result.diagnosis


# ---- buckets ------------------------------------------------------------------------------------


def parameters_of_sizes(*sizes):
    return [torch.nn.Parameter(torch.zeros(size, dtype=torch.uint8), False) for size in sizes]


def test_buckets_agree_with_the_notebook():
    sizes = [40, 70, 10, 200, 30, 20]
    spec = planted.subjects(LAB, planted.solution(LAB))["bucket_spec"](sizes, 100)
    got = bucketed_ddp.bucket_bytes(parameters_of_sizes(*sizes)[::-1], 100)
    assert got == [sum(bucket) for bucket in spec] == [50, 200, 80, 40]


@pytest.mark.parametrize("case", BUCKETED_DDP.cases, ids=lambda case: case.name)
def test_in_each_case_wrong_buckets_differ_from_the_right_ones(case):
    parameters, wanted = shared.trainable(shared.build(case)), case.params["buckets"]
    overfull = [0]
    for parameter in parameters[::-1]:
        if overfull[-1] >= case.params["cap_bytes"]:
            overfull.append(0)
        overfull[-1] += parameter.nbytes
    forward = bucketed_ddp.bucket_bytes(parameters, case.params["cap_bytes"])
    wrong = {
        "one collective for each": [parameter.nbytes for parameter in parameters],
        "puts everything into one bucket": [sum(wanted)],
        "forward order": forward,
        "overfills": overfull,
    }
    assert len(wanted) > 1
    for name, sizes in wrong.items():
        assert sorted(sizes) != sorted(wanted), name
        squares = public_buckets.squares
        assert (len(sizes), squares(sizes)) != (len(wanted), squares(wanted))


def test_buckets_complete_in_another_order_in_a_visible_case_and_in_a_hidden_one():
    changed = [
        case.hidden
        for case in BUCKETED_DDP.cases
        if case.params["complete_after"] != sorted(case.params["complete_after"])
    ]
    assert {True, False} <= set(changed)


# ---- the reference and its mistakes -------------------------------------------------------------


@pytest.mark.parametrize("exercise", TRAINING, ids=lambda exercise: exercise.answer)
def test_no_named_mistake_gives_the_right_output(exercise):
    for case in exercise.cases:
        attempt = right_attempt(exercise, case)
        assert exercise.named(attempt) is None
        for mistake, outputs in exercise.required_half.mistakes(case, attempt.inputs):
            if "buffers" in mistake and "gpt" in case.params:
                continue  # a GPT has none
            assert not all(map(equal, outputs, attempt.expected)), mistake


@pytest.mark.parametrize("exercise", TRAINING, ids=lambda exercise: exercise.answer)
def test_every_element_is_compared(exercise):
    for case in exercise.cases:
        attempt = right_attempt(exercise, case)
        parameters = shared.build(case).parameters()
        got = len(attempt.expected[0]["step 0"]["parameters"])
        assert got == sum(parameter.numel() for parameter in parameters)


def test_ranks_start_with_different_weights_if_a_broadcast_is_required():
    for exercise in (HUB_STEP, DDP_STEP):
        case = exercise.cases[0]
        first, second = exercise.draw(case, np.random.default_rng(0))
        assert not equal(first["state"]["layers.0.weight"], second["state"]["layers.0.weight"])
        assert not equal(first["batches"][0][0], second["batches"][0][0])


def test_the_first_step_that_is_wrong_is_shown():
    case = BUCKETED_DDP.cases[0]
    attempt = right_attempt(BUCKETED_DDP, case)
    wrong = {"parameters": 0, "gradients": 0}
    outputs = [{"step 0": attempt.expected[0]["step 0"], "step 1": wrong}, {"step 0": wrong}]
    found = BUCKETED_DDP.difference(replace(attempt, outputs=outputs))
    assert found.who == "rank 1"
    assert found.mistake.endswith("in 'step 0'")


@pytest.mark.parametrize("exercise", TRAINING, ids=lambda exercise: exercise.answer)
def test_half_precision_is_detected_in_every_case(exercise):
    """Gradients that were rounded on the wire differ by more than the tolerance."""
    for case in exercise.cases:
        first = FirstStep(case, right_attempt(exercise, case).inputs)
        for dtype in (torch.float16, torch.bfloat16):
            rounded = torch.stack([own.to(dtype) for own in first.own]).sum(dim=0).float()
            assert not equal(first.mean, rounded / first.n)
