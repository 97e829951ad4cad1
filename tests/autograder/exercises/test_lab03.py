"""Lab 03's references and the form of answers; test_planted.py runs answers on real ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from autograder import exercises
from autograder.evaluation.trial import rng_for
from autograder.exercises.common import as_pairs
from autograder.exercises.lab03_ring_all_reduce.chunk_bounds import wrong_form
from autograder.exercises.lab03_ring_all_reduce.hidden import bytes_per_rank, chunk_bounds

LAB = "03_ring_all_reduce"
BY_ANSWER = {exercise.answer: exercise for exercise in exercises.of_lab(LAB)}
ON_RANKS = [BY_ANSWER[name] for name in ("reduce_scatter", "all_gather", "ring_all_reduce")]


@pytest.mark.parametrize("length", [0, 1, 3, 10, 12, 97])
@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_bounds_agree_with_tensor_split(length, world_size):
    elements = torch.arange(length)
    pieces = [elements[start:stop] for start, stop in chunk_bounds.right(length, world_size)]
    wanted = elements.tensor_split(world_size)
    assert [piece.tolist() for piece in pieces] == [piece.tolist() for piece in wanted]


def test_inputs_depend_only_on_the_seed_and_differ_between_ranks():
    exercise = BY_ANSWER["reduce_scatter"]
    case = exercise.cases[0]
    first, again, other = (exercise.draw(case, rng_for(exercise, case, seed)) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], first[1])


HIDDEN = [
    pytest.param(exercise, case, id=f"{exercise.answer}, {case.name}")
    for exercise in ON_RANKS
    for case in exercise.cases
    if case.hidden and case.params["length"] < 100
]


@pytest.mark.parametrize(("exercise", "case"), HIDDEN)
def test_other_ranks_inputs_cannot_be_guessed(exercise, case):
    """A bfloat16 has 16 values here: a single one was guessed in about one of forty gradings."""
    draws = [exercise.draw(case, rng_for(exercise, case, seed))[-1] for seed in range(200)]
    times = [sum(torch.equal(one, other) for other in draws) for one in draws]
    assert max(times) <= 4


def test_all_gather_inputs_do_not_contain_the_answer():
    exercise = BY_ANSWER["all_gather"]
    case = exercise.cases[0]
    buffers = exercise.draw(case, np.random.default_rng(0))
    wanted = exercise.expect(case, buffers)[0]["tensor"].tolist()
    for rank, buffer in enumerate(buffers):
        for chunk, (start, stop) in enumerate(case.params["bounds"]):
            assert (buffer[start:stop].tolist() == wanted[start:stop]) == (chunk == rank)


def test_formula_agrees_with_a_hand_count():
    assert bytes_per_rank.right(1000, 4, 4) == 6000
    assert bytes_per_rank.right(640, 8, 1) == 0
    # A 4 MiB all-reduce over 4 ranks sends 6 MiB per rank (ground truth: 6.002 measured).
    assert bytes_per_rank.right(2**20, 4, 4) == 6 * 2**20


def test_bounds_may_be_lists_of_numpy_integers():
    assert as_pairs(([np.int64(0), torch.tensor(3)], (3, 5))) == [(0, 3), (3, 5)]
    assert as_pairs(None) is None
    assert as_pairs({0: (0, 3)}) == {}


@pytest.mark.parametrize(
    ("n", "bounds", "message"),
    [
        (4, [(0, 2), (2, 4), (4, 6), (6, 8)], "skips the remainder"),
        (3, [(0, 3), (3, 6), (6, 8), (8, 10)], "one pair for each rank"),
        (4, [(0, 2), (2, 4), (4, 6), (6, 10)], "unequal"),
        (4, [(0, 10**12), (3, 6), (6, 8), (8, 10)], "0 ≤ start"),
    ],
)
def test_each_kind_of_wrong_bounds_is_named(n, bounds, message):
    found = wrong_form([10, n], chunk_bounds.right(10, n), bounds)
    assert found is not None
    assert message in (found if isinstance(found, str) else found[0])


def test_the_item_that_breaks_the_rule_is_shown():
    """The first items differ from the expected ones, and are in order."""
    found = wrong_form([10, 4], chunk_bounds.right(10, 4), [(0, 2), (2, 4), (4, 3), (6, 9)])
    assert found == (
        "should satisfy 0 ≤ start ≤ stop ≤ length",
        "at index 2: 4 and 3, expected 6 and 8",
    )
