"""Exercises on ranks: each rank's input, and which wrong reference explains the outputs."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from autograder.exercise import Case
from autograder.exercise.on_ranks import OnRanks, on_every_rank
from shardlab.errors import RankError
from tests.autograder.attempts import attempt, exercise

RNG = np.random.default_rng(0)


def named(exercise: Any, *outputs: Any) -> list[tuple[str, bool]] | None:
    """(what a student reads, whether it is certain) of each named mistake."""
    found = exercise.named(attempt(outputs=outputs))
    return found and [(each.finding.text(hidden=False), each.is_certain) for each in found]


def test_a_list_is_by_rank_and_another_value_is_for_every_rank() -> None:
    case = Case("3 ranks", 3)
    assert on_every_rank((1, 2), case) == [(1, 2)] * 3
    assert on_every_rank([1, 2, 3], case) == [1, 2, 3]
    with pytest.raises(ValueError, match="3 ranks: 2 values for 3 ranks"):
        on_every_rank([1, 2], case)
    nothing = lambda *_: None  # noqa: E731
    by_rank = OnRanks(
        points=1, cases=(case,), drive=nothing, inputs=lambda case, rng: [*range(case.world_size)]
    )
    assert by_rank.draw(case, RNG) == [0, 1, 2]


def test_a_mistake_is_named_with_the_ranks_whose_output_is_wrong() -> None:
    mistakes = {
        "sums": lambda case, inputs: [1, 2],
        "never divides": lambda case, inputs: 2,
        "is right here": lambda case, inputs: 1,
        "does not apply": lambda case, inputs: None,
    }
    lab = exercise(mistakes=mistakes)
    assert named(lab, 1, 1) is None
    assert named(lab, 1, 2) == [("rank 1 sums (rank 1: 2, expected 1)", True)]
    assert named(lab, 2, 2) == [("your answer never divides (rank 0: 2, expected 1)", True)]
    assert named(lab, 2, 3) == ()
    failed = attempt(error=RankError("rank 1 failed", rank=1, kind="ValueError", message="no"))
    assert lab.named(failed) is None


def test_what_no_rank_does_is_not_said_of_every_rank() -> None:
    """ "every rank does not send" could mean that some do."""
    lab = exercise(mistakes={"does not send": lambda case, inputs: 2})
    (found,) = lab.named(attempt(outputs=(2, 2))) or ()
    assert found.finding.text(hidden=True) == "your answer does not send"


def test_a_mistake_on_every_rank() -> None:
    lab = exercise(mistakes={"adds one": lambda case, inputs: 2})
    (found,) = lab.named(attempt(outputs=(2, 2))) or ()
    assert found.finding.text(hidden=False).startswith("every rank adds one (")
    assert found.finding.text(hidden=True) == "every rank adds one"


def test_mistakes_may_be_compared_less_closely_than_outputs() -> None:
    mistakes = {"adds one": lambda case, inputs: 2.0, "is right here": lambda case, inputs: 1}
    assert named(exercise(mistakes=mistakes), 2.001, 2.001) == ()
    lab = exercise(mistakes=mistakes, named_within=0.01)
    ((text, _),) = named(lab, 2.001, 2.001) or ()
    assert text.startswith("every rank adds one")
    assert named(lab, 1.001, 1.001) == ()  # as near to the right output


def test_a_mistake_whose_outputs_are_not_recorded_is_uncertain() -> None:
    lab = exercise(mistakes={"sums": lambda case, inputs: [1, 2]})

    class Recorded:
        """As in a students' copy."""

        def mistakes(self, *_: Any) -> Any:
            yield "sums", None

    ((text, is_certain),) = named(dataclasses.replace(lab, half=Recorded()), 5, 1) or ()
    assert (text, is_certain) == ("rank 0 sums (rank 0: 5, expected 1)", False)
