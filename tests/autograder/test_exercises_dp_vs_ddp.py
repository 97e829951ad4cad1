"""Lab 02: oracles against independent counts, and mistakes that no planted answer makes."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace

import cloudpickle
import numpy as np
import pytest
import torch
import torch.distributed as dist

from autograder.evaluation.decide import decide
from autograder.evaluation.threads import one_thread
from autograder.exercise import Attempt
from autograder.exercise.compare import equal
from autograder.exercises import buckets, data_parallel, hub
from autograder.exercises.bucket_mistakes import name_wrong_buckets
from autograder.exercises.data_parallel_bytes import hub_pairs, ring_pairs
from shardlab import launch, measure
from tests.submissions import planted

LAB = "02_dp_vs_ddp"
lab = importlib.import_module(f"autograder.exercises.{LAB}")
TRAINED_BY = {"hub": hub.HUB_STEP, "ddp": lab.DDP_STEP, "buckets": lab.BUCKETED_DDP}


# ---- bytes --------------------------------------------------------------------------------------


def test_formulas_are_those_of_the_ground_truth():
    """Hub: (N-1)Ψ each way through rank 0, Ψ each way for the others; ring: 2(N-1)/N·Ψ."""
    assert hub_pairs(100, 4) == [(300, 300), (100, 100), (100, 100), (100, 100)]
    assert ring_pairs(100, 4) == [(150, 150)] * 4
    assert hub_pairs(100, 1) == ring_pairs(100, 1) == [(0, 0)]
    assert ring_pairs(1, 1024)[0][0] == pytest.approx(2, rel=1e-3)


@pytest.mark.ranks
def test_formulas_are_what_real_ranks_send_and_receive():
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
    tree = [lab.broadcast_peers(rank, n) for rank in range(n)]
    sent = run.traffic["broadcast"].sent_by_rank / psi
    np.testing.assert_allclose(sent, tree, atol=0.01)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 5, 8, 64])
def test_a_broadcast_reaches_every_other_rank_once(world_size):
    reached = [lab.broadcast_peers(rank, world_size) for rank in range(world_size)]
    assert sum(reached) == world_size - 1
    assert reached[0] == int(np.ceil(np.log2(world_size)))


# ---- buckets ------------------------------------------------------------------------------------


def of_sizes(*sizes):
    return [torch.nn.Parameter(torch.zeros(size, dtype=torch.uint8), False) for size in sizes]


def test_buckets_are_those_of_the_notebook():
    sizes = [40, 70, 10, 200, 30, 20]
    spec = planted.subjects(LAB, planted.solution(LAB))["bucket_spec"](sizes, 100)
    got = buckets.bucket_bytes(of_sizes(*sizes)[::-1], 100)
    assert got == [sum(bucket) for bucket in spec] == [50, 200, 80, 40]


@pytest.mark.parametrize("case", buckets.cases(), ids=lambda case: case.name)
def test_in_each_case_wrong_buckets_are_other_buckets(case):
    model, cap = data_parallel.build(case), case.params["cap_bytes"]
    parameters = data_parallel.trainable(model)
    wanted = buckets.buckets_of(case)
    forward = buckets.bucket_bytes(parameters, cap)
    overfull = [0]
    for parameter in parameters[::-1]:
        if overfull[-1] >= cap:
            overfull.append(0)
        overfull[-1] += parameter.nbytes
    wrong = {
        "one collective for each": [parameter.nbytes for parameter in parameters],
        "ignores the cap": [sum(wanted)],
        "forward order": forward,
        "overfills": overfull,
    }
    assert len(wanted) > 1
    for name, sizes in wrong.items():
        assert name in name_wrong_buckets(model, sizes, wanted, cap)
        told_apart = (len(sizes), max(sizes)) != (len(wanted), max(wanted))
        assert told_apart or sizes[-1 if sizes is forward else 0] != wanted[0]


# ---- the oracle, and what mistakes make of it ---------------------------------------------------


def right_attempt(exercise, case):
    inputs = list(exercise.draw(case, np.random.default_rng(3)))
    expected = list(exercise.expect(case, inputs))
    return Attempt(case, inputs, expected, expected, None, None)


@one_thread()
def none_looks_right(attempt, mistakes, ranks):
    first = data_parallel.FirstStep(attempt)
    right = {key: values[0] for key, values in attempt.expected[0].items()}
    if "gradients" in right:
        assert equal(right["gradients"], first.mean)
    assert "frozen" in attempt.case.params or equal(right["parameters"], first.stepped(first.mean))
    for rank in ranks:
        for mistake, vectors in mistakes(first, rank):
            if "buffers" in mistake and "gpt" in attempt.case.params:
                continue  # it has none
            assert not all(equal(right[key], vector) for key, vector in vectors.items()), mistake


@pytest.mark.parametrize("name", TRAINED_BY)
def test_no_known_mistake_looks_right(name):
    mistakes = {
        "hub": hub.hub_mistakes,
        "ddp": lab.ddp_mistakes,
        "buckets": lab.bucket_mistakes.reduces_copies,
    }[name]
    for case in TRAINED_BY[name].cases:
        attempt = right_attempt(TRAINED_BY[name], case)
        none_looks_right(attempt, mistakes, [0] if name == "hub" else range(case.world_size))


def test_ranks_start_apart_where_a_broadcast_is_asked_for():
    for exercise in (hub.HUB_STEP, lab.DDP_STEP):
        case = exercise.cases[0]
        first, second = exercise.draw(case, np.random.default_rng(0))
        assert not equal(first["state"]["layers.0.weight"], second["state"]["layers.0.weight"])
        assert not equal(first["batches"][0][0], second["batches"][0][0])


# ---- answers whose mistakes show in a hang or an error ------------------------------------------


def mistake_of(exercise, answer, world_size, timeout_s=20.0):
    """The diagnosis of the first case with so many ranks."""
    case = next(case for case in exercise.cases if case.world_size == world_size)
    alone = replace(exercise, cases=(case,), timeout_s=timeout_s)
    (result,) = decide(alone, cloudpickle.dumps(answer), seed=1).cases
    assert not result.passed
    return result.diagnosis


def hub_with(weights_to, gradients_from, backwards=False, sends=True):
    """A hub_step that talks to these ranks only."""

    def hub_step(model, inputs, targets, lr):
        parameters = list(model.parameters())
        for parameter in parameters[::-1] if backwards and dist.get_rank() == 0 else parameters:
            if dist.get_rank() == 0:
                for peer in weights_to:
                    dist.send(parameter.data, peer)
            else:
                dist.recv(parameter.data, 0)
        model(inputs, targets).backward()
        for parameter in parameters:
            if dist.get_rank() == 0:
                for peer in gradients_from:
                    dist.recv(torch.empty_like(parameter), peer)
            elif sends:
                dist.send(parameter.grad, 0)

    return hub_step


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weights_to": range(3), "gradients_from": (1, 2)}, "partners are the N - 1 others"),
        ({"weights_to": (1, 2), "gradients_from": (1, 2), "backwards": True}, "same way on both"),
        ({"weights_to": (1,), "gradients_from": (1, 2)}, "those go out first, to all"),
        ({"weights_to": (1, 2), "gradients_from": (1, 2), "sends": False}, "that nobody sends"),
        ({"weights_to": (1, 2), "gradients_from": ()}, "receive N - 1 of each"),
    ],
)
def test_a_hub_that_hangs_is_told_why(options, said):
    diagnosis = mistake_of(hub.HUB_STEP, hub_with(**options), world_size=3)
    assert said in diagnosis
    assert not re.search("neighbour|isend", diagnosis)


@pytest.mark.ranks
def test_a_broadcast_from_everybody_is_named():
    def ddp_step(model, inputs, targets, lr, step):
        for parameter in model.parameters():
            dist.broadcast(parameter.data, src=dist.get_rank())

    said = mistake_of(lab.DDP_STEP, ddp_step, world_size=2, timeout_s=2)
    assert "src is the same rank everywhere" in said


@pytest.mark.ranks
def test_waiting_for_ever_for_a_frozen_parameter_is_named():
    import time
    from functools import partial

    class BucketedDDP(torch.nn.Module):
        def __init__(self, module, cap_bytes):
            super().__init__()
            self.module = module
            self.missing = {id(parameter) for parameter in module.parameters()}
            for parameter in (p for p in module.parameters() if p.requires_grad):
                parameter.register_post_accumulate_grad_hook(partial(self.arrived))

        def forward(self, *batch):
            return self.module(*batch)

        def arrived(self, parameter):
            self.missing.remove(id(parameter))

        def finish(self):
            while self.missing:
                time.sleep(0.01)

    exercise = replace(lab.BUCKETED_DDP, cases=lab.BUCKETED_DDP.cases[2:3])
    said = mistake_of(exercise, BucketedDDP, world_size=3, timeout_s=3)
    assert "waits for the gradient of a frozen parameter" in said
