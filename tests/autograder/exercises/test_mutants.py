"""A sample of the solutions' mutants, the same in each run: each loses points or is explained.

``python -m autograder mutants`` decides all of them, which takes half an hour.
"""

from __future__ import annotations

import pytest

from autograder import exercises
from autograder.evaluation.trial import RankPool
from autograder.mutants.survivors import decide_mutants, mutants_of
from shardlab.ranks.trust import Trust

SAMPLE = 3  # of each exercise


@pytest.mark.ranks
@pytest.mark.parametrize("lab", exercises.labs())
def test_no_unexplained_mutant_earns_full_marks(lab: str) -> None:
    unexplained = []
    with RankPool(trust=Trust.UNTRUSTED) as ranks:
        for exercise in exercises.of_lab(lab):
            ranks.expect(exercise, exercise.cases)
        for exercise in exercises.of_lab(lab):
            chosen = mutants_of(lab, exercise, SAMPLE)
            assert chosen
            for decided in decide_mutants(lab, exercise, chosen, ranks):
                if decided.is_unexplained:
                    unexplained.append(f"{exercise.answer}, {decided.mutant}")
    assert unexplained == []
