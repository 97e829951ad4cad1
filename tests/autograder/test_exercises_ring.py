"""Lab 03's oracles and diagnoses; test_labs.py puts its answers on real ranks."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch

from autograder.evaluation.trial import rng_for
from tests.submissions import planted

LAB = "03_ring_all_reduce"
ring = importlib.import_module(f"autograder.exercises.{LAB}")
MISTAKES = {mistake.name: mistake for mistake in planted.of_lab(LAB)}


def test_every_planted_mistake_of_the_issue_is_here():
    assert set(MISTAKES) >= {
        "sum_instead_of_mean",
        "skips_the_remainder",
        "receives_from_the_wrong_neighbour",
        "works_only_for_four_ranks",
        "sends_everything_to_rank_0",
        "sends_whole_tensors_round",
        "both_send_first",
        "modifies_a_copy",
        "calls_all_reduce",
    }


@pytest.mark.parametrize("length", [0, 1, 3, 10, 12, 97])
@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_bounds_are_those_of_tensor_split(length, world_size):
    elements = torch.arange(length)
    pieces = [elements[start:stop] for start, stop in ring.bounds_of(length, world_size)]
    wanted = elements.tensor_split(world_size)
    assert [piece.tolist() for piece in pieces] == [piece.tolist() for piece in wanted]


def test_inputs_follow_from_the_seed_and_differ_between_ranks():
    exercise = ring.REDUCE_SCATTER
    case = exercise.cases[0]
    first, again, other = (exercise.draw(case, rng_for(exercise, case, seed)) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], first[1])


HIDDEN = [
    (exercise, case)
    for exercise in (ring.REDUCE_SCATTER, ring.ALL_GATHER, ring.RING_ALL_REDUCE)
    for case in exercise.cases
    if case.hidden and case.params["length"] < 100
]


@pytest.mark.parametrize(("exercise", "case"), HIDDEN)
def test_what_other_ranks_have_is_not_guessed(exercise, case):
    """A bfloat16 has 16 values here: one alone was guessed right once in some forty gradings."""
    draws = [exercise.draw(case, rng_for(exercise, case, seed))[-1] for seed in range(200)]
    times = [sum(torch.equal(one, other) for other in draws) for one in draws]
    assert max(times) <= 4


def test_all_gather_is_not_given_what_it_should_fetch():
    case = ring.ALL_GATHER.cases[0]
    buffers = ring.draw_buffers(case, np.random.default_rng(0))
    (wanted,) = {tuple(out["tensor"].tolist()) for out in ring.expect_all_gather(case, buffers)}
    for rank, buffer in enumerate(buffers):
        for chunk, (start, stop) in enumerate(ring.bounds_of(len(buffer), case.world_size)):
            same = buffer[start:stop].tolist() == list(wanted[start:stop])
            assert same == (chunk == rank)


def test_formula_is_that_of_a_hand_count():
    case = ring.BYTES_PER_RANK.cases[0]
    assert ring.expect_bytes_per_rank(case, [[[1000, 4, 4], [640, 8, 1]]]) == [[6000, 0]]
    # A 4 MiB all-reduce over 4 ranks sends 6 MiB per rank (shared ground truth: 6.002 measured).
    assert ring.expect_bytes_per_rank(case, [[[2**20, 4, 4]]]) == [[6 * 2**20]]


def test_bounds_may_be_lists_and_of_numpys_numbers():
    assert ring.as_pairs(([np.int64(0), torch.tensor(3)], (3, 5))) == [(0, 3), (3, 5)]
    assert ring.as_pairs(None) is None


def test_wrong_bounds_are_told_apart():
    name = ring.name_wrong_bounds
    assert name(10, 4, [(0, 2), (2, 4), (4, 6), (6, 8)]).startswith("skips the remainder")
    assert "one pair for each rank" in name(10, 3, [(0, 3), (3, 6), (6, 8), (8, 10)])
    assert "unequal" in name(10, 4, [(0, 2), (2, 4), (4, 6), (6, 10)])
    assert "longer chunks first" in name(10, 4, [(0, 2), (2, 4), (4, 7), (7, 10)])
    assert "0 ≤ start" in name(10, 4, [(0, 10**12), (3, 6), (6, 8), (8, 10)])
    assert "exactly one chunk" in name(10, 4, [(0, 3), (2, 6), (6, 8), (8, 10)])
